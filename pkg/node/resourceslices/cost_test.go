// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// threadTime returns the CPU time of the calling thread. Other processes and the collector's threads do not add to it.
func threadTime(t testing.TB) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// settings are the rows of the table of docs/scaling.md. Of settings with Auto there is a second row, for a node of which
// another one publishes the sample.
var settings = []struct{ name, file string }{
	{"all offered", ""},
	{"not shareable", "publish: [{shareable: None}]"},
	{"without +me", "publish: [{profiles: [1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb]}]"},
	{"profile 1g.10gb only", "publish: [{profiles: [1g.10gb]}]"},
	{"1g.10gb only, not shareable", "publish: [{profiles: [1g.10gb], shareable: None}]"},
	{"Auto and 1g.10gb, not shareable", "publish: [{profiles: [Auto, 1g.10gb], shareable: None}]"},
	{"Auto, not shareable", "publish: [{profiles: Auto, shareable: None}]"},
	{"Auto, groups too", "publish: [{profiles: Auto, groups: Auto, monitors: Auto}]"},
	{"the default: Auto for all", autoForAll},
	{"Auto, groups too, not shareable", "publish: [{profiles: Auto, groups: Auto, monitors: Auto, shareable: None}]"},
	{"Auto and 1g.10gb, groups Auto, not shareable", "publish: [{profiles: [Auto, 1g.10gb], groups: Auto, monitors: Auto, shareable: None}]"},
	{"no partitions", "publish: [{profiles: None}]"},
	{"no partitions, not shareable", "publish: [{profiles: None, shareable: None}]"},
	{"GPUs only, not shareable", "publish: [{profiles: None, groups: None, shareable: None}]"},
}

const autoForAll = "publish: [{profiles: Auto, groups: Auto, monitors: Auto, shareable: Auto}]"

// lastGPUs returns the PCI addresses of the last GPUs, which claims of whole GPUs use last.
func lastGPUs(board gpu.Snapshot, n int) (out []string) {
	for _, g := range board.GPUs[len(board.GPUs)-n:] {
		out = append(out, g.PCIAddress)
	}
	return out
}

// plainNode is a node of eight devices without counters, groups, shares and monitors.
func plainNode(t testing.TB, board gpu.Snapshot) *scheduler {
	for i := range board.GPUs {
		board.GPUs[i].MIG, board.GPUs[i].Links = gpu.MIG{}, nil
	}
	s := newScheduler(t, board, resourceslices.Options{})
	s.slices = s.slices[:1]
	s.slices[0].Spec.Pool.ResourceSliceCount = 1
	if n := len(s.slices[0].Spec.Devices); n != 8 {
		t.Fatalf("a plain node has %d devices", n)
	}
	return s
}

// use allocates that many devices of the node to claims.
func (s *scheduler) use(n int, claim func() *resourceapi.ResourceClaim) *scheduler {
	for range n {
		if len(s.allocate(claim())) != 1 {
			s.t.Fatalf("no device for one of %d claims", n)
		}
	}
	return s
}

// withClaimsElsewhere adds allocations of whole GPUs on other nodes with the same settings.
func (s *scheduler) withClaimsElsewhere(n int) *scheduler {
	shareable := s.slices[0].Spec.Devices[0].AllowMultipleAllocations != nil
	for i := range n {
		device := structured.MakeDeviceID(driver, fmt.Sprintf("other-%d/gpu", i/8), fmt.Sprintf("gpu-0000-1%d-00-0", i%8))
		if shareable {
			s.shares = append(s.shares, share{device: device, id: types.UID(fmt.Sprintf("elsewhere-%d", i))})
		} else {
			s.allocated.Insert(device)
		}
	}
	return s
}

// allocation returns a function that asks the scheduler's allocator for the claim on this node. Like the scheduler for a
// pod, the caller asks for a new one each time that it wants a time.
func (s *scheduler) allocation(claim *resourceapi.ResourceClaim) func() {
	s.t.Helper()
	ctx := context.Background()
	features := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true}
	state := structured.AllocatedState{
		AllocatedDevices: s.allocated, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: s.used,
	}
	for _, one := range s.shares {
		// Kubernetes 1.38 has IDs of devices here, an index of the shared allocations. This does not compile then, and
		// docs/scaling.md needs not advise any more to publish no shareable devices.
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(one.device, &one.id))
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	allocator, err := structured.NewAllocator(ctx, features, state, s, s.slices, s.cache)
	if err != nil {
		s.t.Fatal(err)
	}
	return func() {
		_, err := allocator.Allocate(ctx, node, []*resourceapi.ResourceClaim{claim})
		if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
			s.t.Error(err)
		}
	}
}

// time is the least CPU time that the scheduler takes on the node for a claim, which gets a device or not. It repeats
// the allocation up to 100 times, within a minute of all CPU time, but at least five times.
func (s *scheduler) time(claim *resourceapi.ResourceClaim) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	least := time.Hour
	begin := threadTime(s.t)
	for n := 0; n < 5 || n < 100 && threadTime(s.t)-begin < time.Minute; n++ {
		least = min(least, s.once(claim))
	}
	return float64(least) / float64(time.Microsecond)
}

// once is the CPU time of one allocation. The caller is bound to its thread.
func (s *scheduler) once(claim *resourceapi.ResourceClaim) time.Duration {
	allocate := s.allocation(claim)
	start := threadTime(s.t)
	allocate()
	return threadTime(s.t) - start
}

// objects is the number of heap objects that an allocation makes. The time of an allocation is proportional to it, about
// 0.1 µs an object, but for the walk through shared devices of other nodes.
func (s *scheduler) objects(claim *resourceapi.ResourceClaim) float64 {
	return testing.AllocsPerRun(3, s.allocation(claim))
}

// states are the columns of the table: the part of the node that claims hold, in halves, and the claims elsewhere.
var states = []struct {
	name              string
	halves, elsewhere int
}{{"empty", 0, 0}, {"half", 1, 0}, {"full", 2, 0}, {"half, 4,000 claims elsewhere", 1, 4000}}

// inState returns a node in a state, and a claim for a whole GPU or for the smallest partition.
func inState(fresh func() *scheduler, small bool, halves, elsewhere int) (*scheduler, *resourceapi.ResourceClaim) {
	s := fresh()
	half, claim := 4, func() *resourceapi.ResourceClaim { return s.claim("gpu.nvidia.com", 1) }
	if small {
		half, claim = 28, func() *resourceapi.ResourceClaim { return s.claim("mig.nvidia.com", 1, profile("1g.10gb")) }
	}
	return s.use(half*halves, claim).withClaimsElsewhere(elsewhere), claim()
}

// costs returns the row of a node: for whole GPUs and, if it has such partitions, for the smallest one.
func costs(fresh func() *scheduler, partitions bool, cost func(*scheduler, *resourceapi.ResourceClaim) float64) (wholes, smallest []float64) {
	for _, at := range states {
		wholes = append(wholes, cost(inState(fresh, false, at.halves, at.elsewhere)))
		if partitions {
			smallest = append(smallest, cost(inState(fresh, true, at.halves, at.elsewhere)))
		}
	}
	return wholes, smallest
}

// slowdown is the median ratio of the CPU times for a node that is half in use, with claims on other nodes and without them. They
// are measured in turn.
func slowdown(fresh func() *scheduler, small bool) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	alone, claim := inState(fresh, small, 1, 0)
	among, other := inState(fresh, small, 1, 4000)
	var with, without []time.Duration
	for range 101 {
		without = append(without, alone.once(claim))
		with = append(with, among.once(other))
	}
	return ratio(with, without)
}

// BenchmarkSchedulingCost prints the table of docs/scaling.md: the scheduler's CPU time for one node and one pod. It
// fails if claims on other nodes cost time where no device is shareable.
func BenchmarkSchedulingCost(b *testing.B) {
	board := snapshot(b, "hgx-h100", 8)
	row := func(name string, fresh func() *scheduler, partitions bool) {
		wholes, smallest := costs(fresh, partitions, (*scheduler).time)
		line := fmt.Sprintf("| %s |", name)
		for _, microseconds := range append(wholes, smallest...) {
			line += fmt.Sprintf(" %.0f |", microseconds)
		}
		fmt.Println(line) // The log of a benchmark is cut after ten lines.
		if !strings.HasSuffix(name, "not shareable") {
			return
		}
		for i, kind := range []string{"whole GPU", "1g.10gb"}[:1+min(1, len(smallest))] {
			if x := slowdown(fresh, i == 1); x > 1.5 {
				b.Errorf("%s, %s: claims on other nodes multiply the time by %.2f, want at most 1.5", name, kind, x)
			}
		}
	}
	for b.Loop() {
		for _, o := range settings {
			s, _ := profilesOf(newScheduler(b, board, parsed(b, o.file)))
			row(o.name, func() *scheduler { return newScheduler(b, board, parsed(b, o.file)) }, s["1g.10gb"] > 8)
			if strings.Contains(o.file, "profiles: Auto") {
				row("no sample, "+o.name, func() *scheduler { return newScheduler(b, board, elsewhere(b, o.file)) }, false)
			}
		}
		for _, n := range []int{2, 8} {
			serving := lastGPUs(board, n)
			row(fmt.Sprintf("%d serving GPUs, the default", n), func() *scheduler { return newScheduler(b, board, elsewhere(b, autoForAll, serving...)) }, n == 8)
		}
		row("plain", func() *scheduler { return plainNode(b, snapshot(b, "hgx-h100", 8)) }, false)
	}
}

// TestAllocate_Settings_CostStaysInBudget counts the heap objects of an allocation, which do not depend on the machine's
// speed and load. Budgets are about 1.2 times what was counted: on a plain node 125 objects for a whole GPU.
func TestAllocate_Settings_CostStaysInBudget(t *testing.T) {
	board := snapshot(t, "hgx-h100", 8)
	for file, budget := range map[string]struct{ wholes, smallest []float64 }{
		"": {[]float64{600, 1300, 22000}, []float64{2000, 21000, 40000}},
		"publish: [{profiles: [1g.10gb], shareable: None}]":                                     {[]float64{340, 580, 6500}, []float64{1700, 1800, 2300}},
		"publish: [{profiles: None, shareable: None}]":                                          {[]float64{220, 460, 1300}, nil},
		"publish: [{profiles: Auto, shareable: None}]":                                          {[]float64{240, 470, 1950}, nil},
		"publish: [{profiles: Auto, groups: Auto, monitors: Auto}]":                             {[]float64{300, 780, 1720}, nil},
		"no sample, publish: [{profiles: Auto, groups: Auto, monitors: Auto}]":                  {[]float64{250, 730, 1000}, nil},
		"no sample, publish: [{profiles: Auto, groups: Auto, monitors: Auto, shareable: None}]": {[]float64{150, 185, 60}, nil},
		"no sample, " + autoForAll:                                                              {[]float64{150, 185, 60}, nil},
		"two GPUs serve, " + autoForAll:                                                         {[]float64{240, 250, 1700}, nil},
		"eight GPUs serve, " + autoForAll:                                                       {[]float64{390, 870, 6500}, []float64{1280, 7000, 12400}},
	} {
		serving := map[string]int{"no sample, ": 0, "two GPUs serve, ": 2, "eight GPUs serve, ": 8}
		at := strings.Index(file, "publish")
		o := parsed(t, file[max(at, 0):])
		if n, ok := serving[file[:max(at, 0)]]; ok {
			o = elsewhere(t, file[at:], lastGPUs(board, n)...)
		}
		wholes, smallest := costs(func() *scheduler { return newScheduler(t, board, o) }, budget.smallest != nil, (*scheduler).objects)
		for what, c := range map[string]struct{ objects, budget []float64 }{
			"whole GPU": {wholes, budget.wholes}, "1g.10gb": {smallest, budget.smallest},
		} {
			for i, limit := range c.budget {
				if c.objects[i] > limit {
					t.Errorf("%q, %s, node %s: %.0f objects, want at most %.0f", file, what, states[i].name, c.objects[i], limit)
				}
			}
		}
	}
}
