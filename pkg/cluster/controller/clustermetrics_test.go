// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
)

// holding returns a claim that holds devices of a node, by name. A name with an exclamation mark is held with admin
// access; one with a question mark belongs to another driver.
func holding(name, node string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: request1("gpu.nvidia.com")}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		r := resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: slicetest.Driver, Pool: node + "/gpu", Device: strings.TrimLeft(d, "!?")}
		if strings.HasPrefix(d, "!") {
			r.AdminAccess = new(true)
		}
		if strings.HasPrefix(d, "?") {
			r.Driver = "nic.example.com"
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, r)
	}
	return c
}

func reserved(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: c.Name + "-pod", UID: "u"}}
	return c
}

func deleting(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"f"}
	return c
}

func unallocated(name string, spec resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: spec}
}

func gpusOf(t *testing.T, profile string) (names []string) {
	t.Helper()
	for _, s := range slicesAt(t, profile, "a", 0) {
		for _, d := range s.Spec.Devices {
			if pool.Text(d, "type") == string(gpu.KindGPU) {
				names = append(names, d.Name)
			}
		}
	}
	return names
}

func TestCluster_ClaimsChange_MetricsFollow(t *testing.T) {
	names := gpusOf(t, "l40s-4")
	gpuClass := class("gpu.nvidia.com", `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`)
	at(t, append(machine(t, "l40s-4", "a", 0), gpuClass,
		class("other.example.com", `device.driver == "nic.example.com"`),
		reserved(holding("one", "a", names[0])), holding("same", "a", names[0]), holding("idle", "a", names[1]),
		reserved(holding("watches", "a", "!"+names[2])), holding("foreign", "a", "?"+names[3]), holding("gone", "no-such-node", names[3]),
		deleting(reserved(holding("ends", "a", names[1]))),
		unallocated("pending", request1("gpu.nvidia.com")), unallocated("either", alternative("gpu.nvidia.com")), unallocated("nic", request1("other.example.com")),
		unallocated("unknown", request1("no-such-class")), deleting(unallocated("never", request1("gpu.nvidia.com"))),
	), func(t *testing.T, e *env, c *Controller) {
		want := func(free, allocated int, claims map[string]int) {
			t.Helper()
			cluster, ok := c.Cluster()
			if !ok || cluster.Nodes != 1 {
				t.Fatalf("%v, %d nodes", ok, cluster.Nodes)
			}
			kind := pool.Kind{Type: gpu.KindGPU, Product: "NVIDIA L40S", GPUs: 1}
			if n := cluster.Counts.Devices[pool.KindState{Kind: kind, State: pool.Free}]; n != free {
				t.Errorf("%d GPUs are free, want %d", n, free)
			}
			if n := cluster.Counts.Devices[pool.KindState{Kind: kind, State: pool.Allocated}]; n != allocated {
				t.Errorf("%d GPUs are allocated, want %d", n, allocated)
			}
			if diff := cmp.Diff(claims, cluster.Claims); diff != "" {
				t.Errorf("claims (-want +got)\n%s", diff)
			}
		}
		want(2, 2, map[string]int{phasePending: 2, phaseAllocated: 3, phaseReserved: 2, phaseDeleting: 2})
		e.Remove("resourceclaims", "ns/one")
		synctest.Wait()
		want(2, 2, map[string]int{phasePending: 2, phaseAllocated: 3, phaseReserved: 1, phaseDeleting: 2})
		for _, name := range []string{"same", "idle", "ends", "gone"} {
			e.Remove("resourceclaims", "ns/"+name)
		}
		synctest.Wait()
		want(4, 0, map[string]int{phasePending: 2, phaseAllocated: 0, phaseReserved: 1, phaseDeleting: 1})
		cluster, _ := c.Cluster()
		if diff := cmp.Diff(map[string]int{"ok": 2, "unmatched": 0, "invalid": 0}, cluster.Classes); diff != "" {
			t.Errorf("classes (-want +got)\n%s", diff)
		}
	})
}

func TestCluster_TenThousandClaims_Counted(t *testing.T) {
	const nodes, claims = 500, 10000
	s, names := newEnv(t), gpusOf(t, "l40s-4")
	c := New(slicetest.Driver, s.Client(), Options{})
	l := c.newLeading()
	c.leading.Store(l)
	defer l.queue.ShutDown()
	add := func(to cache.Indexer, o any) {
		if err := to.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	for n := range nodes {
		for _, slice := range slicesAt(t, "l40s-4", fmt.Sprintf("n%d", n), 0) {
			one := c.shapes.Trim(slice)
			add(c.slices.GetIndexer(), &one)
			c.view.nodes.invalidate(one.Node)
		}
	}
	add(c.Classes.GetIndexer(), class(l40sClass, `device.driver == "gpu.nvidia.com"`))
	for n := range claims {
		claim := unallocated(fmt.Sprintf("c%d", n), request1(l40sClass))
		if n < 2*nodes {
			claim = reserved(holding(claim.Name, fmt.Sprintf("n%d", n/2), names[n%2]))
		}
		add(c.Claims.GetIndexer(), claim)
	}
	cluster, ok := c.Cluster()
	if diff := cmp.Diff(map[string]int{phasePending: claims - 2*nodes, phaseAllocated: 0, phaseReserved: 2 * nodes, phaseDeleting: 0}, cluster.Claims); diff != "" || !ok {
		t.Errorf("(-want +got)\n%s", diff)
	}
	kind := pool.Kind{Type: gpu.KindGPU, Product: "NVIDIA L40S", GPUs: 1}
	if n := cluster.Counts.Devices[pool.KindState{Kind: kind, State: pool.Free}]; n != 2*nodes || cluster.Nodes != nodes {
		t.Errorf("%d GPUs of %d nodes are free", n, cluster.Nodes)
	}
}

func TestCluster_NotLeading_ReportsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, machine(t, "l40s-4", "a", 0)...)
		idle := New(slicetest.Driver, e.Client(), Options{})
		if _, ok := idle.Cluster(); ok {
			t.Error("it reports before it knows the cluster")
		}
		if idle.Synced() == nil {
			t.Error("it is ready before it knows the cluster")
		}
		c, stop := e.start()
		pass(time.Second)
		if _, ok := c.Cluster(); !ok || c.Synced() != nil {
			t.Error("it leads and reports nothing")
		}
		stop()
		if _, ok := c.Cluster(); ok {
			t.Error("it reports and leads no more")
		}
	})
}

func TestTrimClaim_Claim_KeepsRequestsAndAllocation(t *testing.T) {
	claim := reserved(holding("c", "a", "gpu-0"))
	claim.Labels, claim.ManagedFields = map[string]string{"a": "b"}, []metav1.ManagedFieldsEntry{{}}
	claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{}}
	claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{}}
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{}}
	claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{}}
	want := reserved(holding("c", "a", "gpu-0"))
	want.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{}}
	out, err := TrimClaim(claim)
	if diff := cmp.Diff(want, out); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, other := range []runtime.Object{&resourceapi.DeviceClass{}, nil} {
		if out, err := TrimClaim(other); err != nil || out != any(other) {
			t.Error(out, err)
		}
	}
}
