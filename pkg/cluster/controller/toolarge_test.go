// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/gpu"
)

func TestCluster_LargeClaims_HoldTheirGPUs(t *testing.T) {
	names := gpusOf(t, "l40s-4")
	many := unallocated("many-classes", request1("gpu.nvidia.com"))
	for i := range 31 {
		many.Spec.Devices.Requests = append(many.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: fmt.Sprint(i), FirstAvailable: slices.Repeat(
			[]resourceapi.DeviceSubRequest{{Name: "a", DeviceClassName: strings.Repeat("c", 250)}}, 8)})
	}
	at(t, append(machine(t, "l40s-4", "a", 0), class("gpu.nvidia.com", `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`),
		padded(reserved(holding("one", "a", names[0]))), padded(holding("two", "a", names[1])), padded(unallocated("waits", request1("gpu.nvidia.com"))), many,
	), func(t *testing.T, e *env, c *Controller) {
		cluster, _ := c.Cluster()
		kind := pool.Kind{Type: gpu.KindGPU, Product: "NVIDIA L40S", GPUs: 1}
		if n := cluster.Counts.Devices[pool.KindState{Kind: kind, State: pool.Allocated}]; n != 2 {
			t.Errorf("%d GPUs are allocated, want 2", n)
		}
		if cluster.Claims[phasePending] != 2 || cluster.Claims[phaseAllocated] != 1 || cluster.Claims[phaseReserved] != 1 {
			t.Errorf("%v", cluster.Claims)
		}
	})
}

// TestInformer_ServerWithoutStreams_FewObjectsAtATime has more large objects than a page. Marks stay marks, although an informer
// transforms an object of a list twice.
func TestInformer_ServerWithoutStreams_FewObjectsAtATime(t *testing.T) {
	for name, lists := range map[string]bool{"pages": true, "a stream": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t)
				e.Lists = lists
				const n = 2*read.TenantsPageSize + 1
				for i := range n {
					e.Put(padded(claimOf(fmt.Sprintf("c-%03d", i), "x")))
				}
				c, stop := e.start(func(o *Options) { o.Waiting = true })
				defer stop()
				pass(time.Second)
				objects, _ := c.Objects()
				marks := 0
				for _, claim := range objects.Claims {
					if bounded.TooLarge(claim) {
						marks++
					}
				}
				if len(objects.Claims) != n || marks != n {
					t.Errorf("%d claims and %d marks of %d", len(objects.Claims), marks, n)
				}
				lists := 0
				for _, r := range e.ReadRequests() {
					if strings.HasPrefix(r, "list ") && !strings.Contains(r, "resourceslices") {
						lists++
						if !strings.HasSuffix(r, fmt.Sprintf(" %d", read.TenantsPageSize)) {
							t.Errorf("%s has no pages", r)
						}
					}
				}
				if (lists > 3) != e.Lists {
					t.Errorf("%d lists", lists)
				}
				e.Put(claimOf("c-000", "x")) // It is small now.
				synctest.Wait()
				if claim := c.Claim("ns", "c-000"); claim == nil || bounded.TooLarge(claim) {
					t.Errorf("after the change it is %+v", claim)
				}
			})
		})
	}
}

// TestLabel_LargeNode_StaysAsItIs has labels that the cache does not keep. They are not taken for absent.
func TestLabel_LargeNode_StaysAsItIs(t *testing.T) {
	objects := machine(t, "l40s-4", "a", 0)
	for _, o := range objects {
		if n, ok := o.(*corev1.Node); ok {
			for i := range 2000 {
				metav1.SetMetaDataLabel(&n.ObjectMeta, fmt.Sprintf("example.com/%d", i), strings.Repeat("x", 60))
			}
		}
	}
	at(t, objects, func(t *testing.T, e *env, _ *Controller) {
		pass(time.Minute)
		for _, w := range e.Written() {
			if strings.Contains(w, "nodes") {
				t.Errorf("%s, although its labels are unknown", w)
			}
		}
	})
}
