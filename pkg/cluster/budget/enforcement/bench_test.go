// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package enforcement

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/budget"
	"gpu-dra-driver/pkg/cluster/pool"
)

func readClaim(b *testing.B, r *admissionv1.AdmissionRequest) *resourceapi.ResourceClaim {
	claim, err := admission.ReadClaim(r)
	if err != nil {
		b.Fatal(err)
	}
	return claim
}

// processorTime returns the time that the process has worked. On a machine with other work, a review also waits.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fixed is a view that does not change.
type fixed struct{ of *admission.ClusterView }

// ClusterView implements viewer.
func (f fixed) ClusterView() *admission.ClusterView { return f.of }

// BenchmarkBudgets_FiveThousandNodes measures reviews under a budget, and the count of 50,000 claims in 50 namespaces with
// budgets. The API server is in memory, so a write to etcd comes on top.
func BenchmarkBudgets_FiveThousandNodes(b *testing.B) {
	const nodeCount, claimCount, namespaces = 5000, 50_000, 50
	e := newEnv(b)
	shapes := &pool.Shapes{}
	var pools []pool.Pool
	makes := []string{"hgx-h100", "l40s-4", "t4-1"}
	for i := range nodeCount {
		node := fmt.Sprintf("n%04d", i)
		profile := makes[min(i%10, 2)] // A tenth has H100, and a tenth L40S.
		var all []*pool.Slice
		for _, s := range slicesAt(b, profile, node, 0) {
			all = append(all, new(shapes.Trim(s)))
		}
		pools = append(pools, pool.Of(all))
	}
	classes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: slicetest.Driver}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`,
	}}}
	if err := classes.Add(class); err != nil {
		b.Fatal(err)
	}
	var distinct []pool.Pool
	for p := range pool.Distinct(pools) {
		distinct = append(distinct, p)
	}
	view := fixed{admission.NewClusterView(slicetest.Driver, ask.Following(classes), distinct)}
	reviews := New(slicetest.Driver, e.Dynamic(), e.Client().ResourceV1(), view, nil)
	e.PutBudget("team-a", "1000000")
	keep := func(namespace string) {
		found := e.budget(namespace)
		budget.Count(found, budget.Counted{Version: "1"}, time.Now())
		if _, err := reviews.write(b.Context(), found); err != nil {
			b.Fatal(err)
		}
	}
	keep("team-a")

	var number atomic.Int64
	ask := func(b *testing.B, i int64) *admissionv1.AdmissionRequest {
		claim := newClaim("team-a", fmt.Sprint("c-", i), slicetest.Driver, 1)
		claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.attributes["gpu.nvidia.com"].productName != "%d"`, i%50),
		}}}
		return creation(b, "resourceclaims", "ResourceClaim", claim)
	}
	began := time.Now()
	for i := range int64(50) { // The first review of each selector compiles it.
		if _, err := reviews.largest(b.Context(), readClaim(b, ask(b, i)).Spec.Devices); err != nil {
			b.Fatal(err)
		}
	}
	b.Logf("the first review of a selector counts its devices in %v", time.Since(began)/50)
	b.Run("review", func(b *testing.B) {
		var took, work []time.Duration
		for b.Loop() {
			i := number.Add(1)
			if i%20 == 0 { // The leader counts.
				b.StopTimer()
				e.Lock()
				e.History, e.Writes, e.Reads = nil, nil, nil // An API server has them in another process.
				e.Unlock()
				keep("team-a")
				reviews.queues = map[string]*queue{}
				found := e.budget("team-a")
				found.Status.Reservations = nil
				if _, err := reviews.write(b.Context(), found); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			r := ask(b, i)
			began, worked := time.Now(), processorTime(b)
			if a := reviews.Review(b.Context(), r); !a.Allowed {
				b.Fatal(a.Result)
			}
			took, work = append(took, time.Since(began)), append(work, processorTime(b)-worked)
		}
		slices.Sort(took)
		slices.Sort(work)
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
		b.ReportMetric(float64(work[len(work)*99/100].Microseconds()), "CPU-µs-p99")
	})

	counter := budget.NewCounter(slicetest.Driver, view.of.Asker, view.of.Pools())
	var claims []*resourceapi.ResourceClaim
	for i := range claimCount {
		claim := newClaim(fmt.Sprint("team-", i%namespaces), fmt.Sprint("c-", i), slicetest.Driver, 1)
		claim.UID = types.UID(fmt.Sprint(i))
		node := fmt.Sprintf("n%04d", i%nodeCount)
		if i%2 == 0 && i%10 != 0 {
			claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Request: "r", Driver: slicetest.Driver, Pool: node + "/gpu", Device: "gpu-0000-00-04-0"},
			}}}
		}
		claims = append(claims, claim)
	}
	b.Run("count", func(b *testing.B) {
		for b.Loop() {
			in := budget.PoolsOf(pools)
			of := map[string]budget.Counted{}
			for _, claim := range claims {
				c, ok := of[claim.Namespace]
				if !ok {
					c = budget.Counted{Claims: map[types.UID]budget.Claim{}, Version: "2"}
					of[claim.Namespace] = c
				}
				cost, ok := counter.Allocated(claim.Status.Allocation, in)
				if claim.Status.Allocation == nil || !ok {
					cost, _ = counter.Largest(b.Context(), claim.Spec.Devices)
				}
				c.Claims[claim.UID] = budget.Claim{Name: claim.Name, UID: claim.UID, Charge: cost}
			}
			for _, c := range of {
				budget.Count(&v1alpha1.GPUBudget{}, c, time.Now())
			}
		}
	})
}
