// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/sampler"
	"gpu-dra-driver/pkg/wire/metric"
)

// profiles fit a board with eight memory slices and seven compute slices.
var profiles = []gpu.Profile{
	{Name: "1g.10gb", Slices: 1, Placements: places(1, 0, 1, 2, 3, 4, 5, 6)},
	{Name: "1g.20gb", Slices: 1, Placements: places(2, 0, 2, 4, 6)},
	{Name: "3g.40gb", Slices: 3, Placements: places(4, 0, 4)},
	{Name: "4g.40gb", Slices: 4, Placements: places(4, 0)},
	{Name: "7g.80gb", Slices: 7, Placements: places(8, 0)},
}

func places(size int, starts ...int) (out []gpu.Placement) {
	for _, start := range starts {
		out = append(out, gpu.Placement{Start: start, Size: size})
	}
	return out
}

func address(i int) string { return fmt.Sprintf("0000:%02x:00.0", i+1) }

func uuid(i int) string { return fmt.Sprintf("GPU-%d", i) }

// node returns a node with n healthy boards.
func node(n int) (s gpu.Snapshot) {
	for i := range n {
		s.GPUs = append(s.GPUs, gpu.GPU{PCIAddress: address(i), UUID: uuid(i), ProductName: "NVIDIA H100", MIG: gpu.MIG{Profiles: profiles}})
	}
	return s
}

func claim(uid string, devices ...plan.Device) plan.Plan {
	return plan.Plan{Claim: plan.Claim{Namespace: "team-a", Name: uid, UID: uid}, Devices: devices}
}

func whole(i int) plan.Device {
	return plan.Device{Kind: gpu.KindGPU, Name: "gpu-" + uuid(i), PCIAddress: address(i), UUID: uuid(i)}
}

func partition(i int, profile string, start int) plan.Device {
	d := whole(i)
	d.Kind, d.Name = gpu.KindMIG, fmt.Sprintf("%s-%s-%d", d.Name, profile, start)
	for _, p := range profiles {
		if p.Name == profile {
			d.Partition = plan.Partition{Profile: profile, Start: start, Size: p.Placements[0].Size}
		}
	}
	return d
}

func share(d plan.Device, percent uint64, compute, most int) plan.Device {
	d.Share = plan.Share{MemoryBytes: percent << 20, DeviceMemoryBytes: 100 << 20, Compute: compute, MaxShares: most}
	return d
}

var states = []string{allocated, free, unhealthy, blocked}

// start is the time of the first observation.
var start = time.Unix(1e9, 0)

// seconds is a time after the start.
func seconds(n float64) time.Time { return start.Add(time.Duration(n * float64(time.Second))) }

// after observes the same node at 0 s and, with the plans, in steps of 10 s until 100 s.
func after(t *testing.T, o observation) counters {
	t.Helper()
	c := newCounters()
	for s := range 11 {
		c.advance(seconds(float64(s)*10), o)
	}
	return c
}

// sum adds up the series of a metric with all these values of labels; found is false if there is none.
func (c *counters) sum(m *metric.Entry, labels ...string) (sum float64, found bool) {
	for s, value := range c.sums {
		if s.metric == m && !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(s.labels[:], l) }) {
			sum, found = sum+value, true
		}
	}
	return sum, found
}

// claimed are the sums of a claim.
type claimed struct {
	allocated, active, occupied float64
	source                      string
	watched                     bool
}

func (c *counters) claimed(uid string) (out claimed) {
	out.allocated, _ = c.sum(&claimAllocated, uid)
	out.occupied, out.watched = c.sum(&claimOccupied, uid)
	for _, source := range []string{"nvml", "gpm"} {
		if active, found := c.sum(&claimActive, uid, source); found {
			out.active, out.source = active, source
		}
	}
	return out
}

func (c *counters) state(i int, state string) float64 {
	sum, _ := c.sum(&gpuSeconds, uuid(i), state)
	return sum
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

func TestCounters_Devices_ChargeTheirPartOfTheBoard(t *testing.T) {
	admin := whole(0)
	admin.Admin = true
	group := func(i int) plan.Device {
		d := whole(i)
		d.Kind, d.Name = gpu.KindGroup, "nvlink-2-gpu-0"
		return d
	}
	for name, c := range map[string]struct {
		devices []plan.Device
		want    float64 // Percent of GPUs, which is the number of GPU seconds in 100 s.
		states  map[string]float64
	}{
		"nothing":                 {nil, 0, map[string]float64{free: 200}},
		"a whole GPU":             {[]plan.Device{whole(0)}, 100, map[string]float64{allocated: 100, free: 100}},
		"a group of two":          {[]plan.Device{group(0), group(1)}, 200, map[string]float64{allocated: 200}},
		"admin access":            {[]plan.Device{admin}, 0, map[string]float64{free: 200}},
		"one of eight slices":     {[]plan.Device{partition(0, "1g.10gb", 0)}, 12.5, map[string]float64{allocated: 12.5, free: 187.5}},
		"four of eight slices":    {[]plan.Device{partition(0, "3g.40gb", 4)}, 50, map[string]float64{allocated: 50, free: 150}},
		"the larger is memory":    {[]plan.Device{share(whole(0), 40, 10, 8)}, 40, map[string]float64{allocated: 40, free: 160}},
		"the larger is compute":   {[]plan.Device{share(whole(0), 10, 75, 8)}, 75, map[string]float64{allocated: 75, free: 125}},
		"two GPUs":                {[]plan.Device{whole(0), whole(1)}, 200, map[string]float64{allocated: 200}},
		"all of a GPU's memory":   {[]plan.Device{share(whole(0), 100, 0, 8)}, 100, map[string]float64{allocated: 100, free: 100}},
		"two shares of one claim": {[]plan.Device{share(whole(0), 10, 0, 8), share(whole(0), 10, 0, 8)}, 20, map[string]float64{allocated: 20, free: 180}},
		"the last share":          {[]plan.Device{share(whole(0), 40, 0, 1)}, 40, map[string]float64{allocated: 40, blocked: 60, free: 100}},
		"a share of a partition":  {[]plan.Device{share(partition(0, "3g.40gb", 4), 50, 0, 8)}, 25, map[string]float64{allocated: 25, free: 175}},
		// A share with much memory and one with much compute take more together than the partition has.
		"different shares of a partition": {
			[]plan.Device{share(partition(0, "3g.40gb", 4), 70, 10, 8), share(partition(0, "3g.40gb", 4), 20, 80, 8)}, 50,
			map[string]float64{allocated: 50, free: 150},
		},
		"different shares of a GPU": {
			[]plan.Device{share(whole(0), 70, 10, 8), share(whole(0), 10, 75, 8)}, 100, map[string]float64{allocated: 100, free: 100},
		},
		// With 4g.40gb and 3g.40gb no compute slice is left; with 3g.40gb twice, one is, but no memory slice.
		"no compute slice left": {
			[]plan.Device{partition(0, "4g.40gb", 0), partition(0, "1g.20gb", 4), partition(0, "1g.10gb", 6), partition(1, "7g.80gb", 0)}, 187.5,
			map[string]float64{allocated: 187.5, blocked: 12.5},
		},
		"seven small ones": {
			[]plan.Device{
				partition(0, "1g.10gb", 0), partition(0, "1g.10gb", 1), partition(0, "1g.10gb", 2), partition(0, "1g.10gb", 3),
				partition(0, "1g.10gb", 4), partition(0, "1g.10gb", 5), partition(0, "1g.10gb", 6), whole(1),
			}, 187.5, map[string]float64{allocated: 187.5, blocked: 12.5},
		},
	} {
		a := after(t, observation{snapshot: node(2), plans: []plan.Plan{claim("c", c.devices...)}})
		if got := a.claimed("c").allocated; !near(got, c.want) {
			t.Errorf("%s: charged %v, want %v", name, got, c.want)
		}
		for _, state := range states {
			if got := a.state(0, state) + a.state(1, state); !near(got, c.states[state]) {
				t.Errorf("%s: %v s %s, want %v", name, got, state, c.states[state])
			}
		}
	}
}

func TestCounters_FaultMissingServed_UnhealthyAndBlocked(t *testing.T) {
	s := node(4)
	s.GPUs[0].Faults = []gpu.Fault{{State: "reset"}}
	s.GPUs[1].Faults = s.GPUs[0].Faults
	plans := []plan.Plan{claim("c", partition(1, "3g.40gb", 0))}
	o := observation{snapshot: s, plans: plans, served: map[string]string{address(2): "nvidia.com/gpu"}}
	c := newCounters()
	c.advance(seconds(0), o)
	o.snapshot.GPUs = s.GPUs[:3] // The last board falls off the bus.
	c.advance(seconds(0), o)
	c.advance(seconds(50), o)
	c.advance(seconds(100), o)
	for i, want := range []map[string]float64{{unhealthy: 100}, {allocated: 50, unhealthy: 50}, {blocked: 100}, {unhealthy: 100}} {
		for _, state := range states {
			if got := c.state(i, state); !near(got, want[state]) {
				t.Errorf("GPU %d: %v s %s, want %v", i, got, state, want[state])
			}
		}
	}
}

// TestCounters_BoardNotScanned_AllocatedThenUnhealthy has a claim of a GPU that no scan of the plugin could read.
func TestCounters_BoardNotScanned_AllocatedThenUnhealthy(t *testing.T) {
	c := newCounters()
	o := observation{plans: []plan.Plan{claim("c", whole(0))}}
	c.advance(seconds(0), o)
	c.advance(seconds(10), o)
	if got := c.claimed("c").allocated; !near(got, 10) || !near(c.state(0, allocated), 10) {
		t.Errorf("%v s of the claim, %v s of the GPU; want 10 of both", got, c.state(0, allocated))
	}
	o.plans = nil
	c.advance(seconds(20), o)
	c.advance(seconds(30), o)
	if got := c.state(0, unhealthy); !near(got, 10) {
		t.Errorf("%v s unhealthy, want 10", got)
	}
	o.snapshot = node(1)
	c.advance(seconds(40), o)
	c.advance(seconds(50), o)
	if got, _ := c.sum(&gpuSeconds, "NVIDIA H100", free); !near(got, 10) {
		t.Errorf("%v s free, want 10", got)
	}
}

// TestCounters_ProfilesUnreadable_LastOnesCount has a scan that cannot read the profiles of a board.
func TestCounters_ProfilesUnreadable_LastOnesCount(t *testing.T) {
	c := newCounters()
	o := observation{snapshot: node(1), plans: []plan.Plan{claim("c", partition(0, "3g.40gb", 4))}}
	c.advance(seconds(0), o)
	o.snapshot.GPUs[0].MIG.Profiles = nil
	c.advance(seconds(10), o)
	c.advance(seconds(20), o)
	if got := c.claimed("c").allocated; !near(got, 10) || !near(c.state(0, free), 10) {
		t.Errorf("charged %v s, %v s free; want 10 of both", got, c.state(0, free))
	}
}

// TestCounters_RandomDays_StatesAddUpToTime starts and ends claims, and breaks boards.
func TestCounters_RandomDays_StatesAddUpToTime(t *testing.T) {
	for seed := range seedtest.Each(t, 200) {
		r := rand.New(rand.NewPCG(seed, 1))
		const gpus = 3
		o, c, at := observation{snapshot: node(gpus)}, newCounters(), start
		c.advance(at, o)
		for step := range 60 {
			switch r.IntN(6) {
			case 0, 1:
				i := r.IntN(gpus)
				devices := []plan.Device{
					whole(i), partition(i, "3g.40gb", 4), share(whole(i), uint64(r.IntN(101)), r.IntN(101), r.IntN(3)),
					partition(i, "1g.10gb", r.IntN(7)),
				}
				o.plans = append(o.plans, claim(fmt.Sprint(step), devices[r.IntN(len(devices))]))
			case 2:
				o.plans = nil
			case 3:
				i := r.IntN(gpus)
				o.snapshot = node(gpus)
				o.snapshot.GPUs[i].Faults = []gpu.Fault{{State: "reset"}}
			case 4:
				o.snapshot.GPUs = o.snapshot.GPUs[:r.IntN(gpus)]
			case 5:
				o.snapshot = node(gpus)
			}
			at = at.Add(time.Duration(r.Int64N(int64(longestStep))))
			c.advance(at, o)
		}
		for i := range gpus {
			sum := 0.
			for _, state := range states {
				if c.state(i, state) < 0 {
					t.Fatalf("seed %d: GPU %d has %v s %s", seed, i, c.state(i, state), state)
				}
				sum += c.state(i, state)
			}
			if want := at.Sub(start).Seconds(); math.Abs(sum-want) > 1e-3 {
				t.Fatalf("seed %d: the states of GPU %d add up to %v s, the clock says %v s", seed, i, sum, want)
			}
		}
	}
}

func TestCounters_ClaimStartsAndEnds_ChargedForItsTime(t *testing.T) {
	c := newCounters()
	held := observation{snapshot: node(1), plans: []plan.Plan{claim("c", whole(0))}}
	c.advance(seconds(10), observation{snapshot: node(1)})
	c.advance(seconds(20), held)
	if sum, found := c.sum(&claimAllocated, "team-a", "c", uuid(0), "NVIDIA H100"); !found || sum != 0 {
		t.Errorf("a new claim has %v s, %v; want a series at 0", sum, found)
	}
	c.advance(seconds(50), held)
	if got := c.claimed("c").allocated; !near(got, 30) {
		t.Errorf("charged %v s, want 30", got)
	}
	c.advance(seconds(55), observation{snapshot: node(1)})
	if _, found := c.sum(&claimAllocated); found || !near(c.state(0, allocated), 35) || !near(c.state(0, free), 10) {
		t.Errorf("series of the claim %v; %v s allocated, %v s free; want none, 35 and 10", found, c.state(0, allocated), c.state(0, free))
	}
}

func TestCounters_ShortClaim_CountsForItsNamespace(t *testing.T) {
	c := newCounters()
	long := claim("long", whole(0))
	long.Claim.Namespace = "team-b"
	only := observation{snapshot: node(2), plans: []plan.Plan{long}}
	both := observation{snapshot: node(2), plans: []plan.Plan{long, claim("short", whole(1))}}
	c.advance(seconds(0), only)
	c.advance(seconds(2), both)
	c.advance(seconds(6), only)
	c.advance(seconds(10), only)
	want := func(team string, seconds float64, present bool) {
		t.Helper()
		if got, found := c.sum(&namespaceAllocated, team, "NVIDIA H100"); found != present || !near(got, seconds) {
			t.Errorf("%s has %v GPU seconds, %v; want %v", team, got, found, seconds)
		}
	}
	want("team-a", 4, true)
	want("team-b", 10, true)
	c.advance(seconds(keepNamespace.Seconds()+1), only)
	want("team-a", 4, true)
	c.advance(seconds(keepNamespace.Seconds()+2), only)
	want("team-a", 0, false)
	want("team-b", 10+longestStep.Seconds()+1, true)
}

// TestCounters_ManyNamespaces_LastOnesStay creates a namespace for each claim, thousands of times on one day.
func TestCounters_ManyNamespaces_LastOnesStay(t *testing.T) {
	c := newCounters()
	long := claim("long", whole(0))
	long.Claim.Namespace = "long"
	const namespaces = 5000
	for i := range namespaces {
		short := claim(fmt.Sprint(i), whole(1))
		short.Claim.Namespace = fmt.Sprint("team-", i)
		c.advance(seconds(float64(i)*4), observation{snapshot: node(2), plans: []plan.Plan{long, short}})
	}
	count := 0
	for s := range c.sums {
		if s.metric == &namespaceAllocated {
			count++
		}
	}
	if count > keepNamespaces+2 || len(c.namespaces) > keepNamespaces+2 {
		t.Errorf("%d series, %d namespaces after %d; want at most %d", count, len(c.namespaces), namespaces, keepNamespaces+2)
	}
	for _, name := range []string{"long", fmt.Sprint("team-", namespaces-1), fmt.Sprint("team-", namespaces-keepNamespaces)} {
		if _, found := c.sum(&namespaceAllocated, name); !found {
			t.Errorf("the namespace %s is forgotten", name)
		}
	}
	if n := len(c.sums); n > 2*4+2+keepNamespaces+2 {
		t.Errorf("%d series: those of ended claims stay", n)
	}
}

// TestCounters_StepTooLongOrBack_CountsAMinuteAndNothing has a node that was suspended, and a clock that jumps.
func TestCounters_StepTooLongOrBack_CountsAMinuteAndNothing(t *testing.T) {
	c := newCounters()
	o := observation{snapshot: node(1), plans: []plan.Plan{claim("c", whole(0))}}
	c.advance(seconds(0), o)
	c.advance(seconds(1e6), o)
	c.advance(seconds(10), o)
	c.advance(seconds(20), o)
	if got := c.claimed("c").allocated; !near(got, longestStep.Seconds()+10) {
		t.Errorf("charged %v s, want a minute and 10 s", got)
	}
}

func TestCounters_OtherBoardInSlot_StartsAgain(t *testing.T) {
	c := after(t, observation{snapshot: node(1)})
	s := node(1)
	s.GPUs[0].UUID = "GPU-new"
	c.advance(seconds(110), observation{snapshot: s})
	c.advance(seconds(120), observation{snapshot: s})
	sum, found := c.sum(&gpuSeconds, "GPU-new", free)
	if _, old := c.sum(&gpuSeconds, uuid(0)); !found || !near(sum, 10) || old {
		t.Errorf("%v s of the new board, series of the old one: %v; want 10 s and none", sum, old)
	}
}

// used are measurements of a claim's device.
func used(d plan.Device, utilization, processes float64) sampler.Use {
	return sampler.Use{Device: d, Utilization: utilization, Processes: processes}
}

func TestCounters_Activity_IntegratedByWeight(t *testing.T) {
	busy, half := partition(0, "3g.40gb", 4), whole(1)
	half.Share = plan.Share{MemoryBytes: 40, DeviceMemoryBytes: 80}
	o := observation{
		snapshot: node(3), plans: []plan.Plan{claim("busy", busy, busy), claim("unknown", whole(2)), claim("share", half)},
		uses: map[[2]int]sampler.Use{
			{0, 0}: used(busy, .2, 1), {0, 1}: used(busy, .2, 3), {2, 0}: used(half, .8, sampler.Absent),
		},
	}
	c := after(t, o)
	if got := c.claimed("busy"); !near(got.active, 20) || !near(got.occupied, 100) || got.source != "gpm" || !got.watched {
		t.Errorf("%+v, want 20 active and 100 occupied seconds", got)
	}
	if got := c.claimed("unknown"); got.source != "" || got.watched {
		t.Errorf("%+v, want no measurement", got)
	}
	if got := c.claimed("share"); !near(got.active, 50) || got.source != "nvml" || got.watched {
		t.Errorf("%+v, want 50 active seconds, and unknown processes", got)
	}
	// A series that stood still would mean that the claim is idle.
	uses := o.uses
	o.uses = nil
	c.advance(seconds(150), o)
	if got := c.claimed("busy"); got.source != "" || got.watched || !near(got.allocated, 75) {
		t.Errorf("%+v, want only allocated seconds while nothing is measured", got)
	}
	o.uses = uses
	c.advance(seconds(160), o)
	c.advance(seconds(170), o)
	if got := c.claimed("busy"); !near(got.active, 2) || !near(got.occupied, 10) {
		t.Errorf("%+v, want the seconds since the use can be measured again", got)
	}
}

// TestCounters_NewClaim_NoActivityBeforeIt has a claim get a busy GPU between two observations.
func TestCounters_NewClaim_NoActivityBeforeIt(t *testing.T) {
	c := newCounters()
	c.advance(seconds(0), observation{snapshot: node(1)})
	o := observation{
		snapshot: node(1), plans: []plan.Plan{claim("new", whole(0))},
		uses: map[[2]int]sampler.Use{{}: used(whole(0), 1, 1)},
	}
	for at, want := range []float64{0, 10} {
		c.advance(seconds(float64(at+1)*10), o)
		if got := c.claimed("new"); got != (claimed{want, want, want, "nvml", true}) {
			t.Errorf("%+v, want %v allocated, active and occupied seconds", got, want)
		}
	}
}

// TestCounters_SharesOfOneDevice_ActiveAtMostAllocated has a claim with a share of much memory and one of much compute.
func TestCounters_SharesOfOneDevice_ActiveAtMostAllocated(t *testing.T) {
	devices := []plan.Device{share(whole(0), 70, 10, 8), share(whole(0), 20, 80, 8)}
	c := after(t, observation{
		snapshot: node(1), plans: []plan.Plan{claim("c", devices...)},
		uses: map[[2]int]sampler.Use{
			{0, 0}: used(devices[0], 1, sampler.Absent), {0, 1}: used(devices[1], 1, sampler.Absent),
		},
	})
	if got := c.claimed("c"); !near(got.allocated, 100) || !near(got.active, 100) {
		t.Errorf("%+v, want 100 allocated and active seconds", got)
	}
}

// TestCounters_Faults_UnhealthyIfGPUIsUnavailable counts a GPU as free while a fault takes only its groups.
func TestCounters_Faults_UnhealthyIfGPUIsUnavailable(t *testing.T) {
	for fault, want := range map[string]string{health.Reset: unhealthy, health.Named: unhealthy, "unknown": unhealthy, health.DrainP2P: free} {
		s := node(1)
		s.GPUs[0].Faults = []gpu.Fault{{State: fault}}
		c := after(t, observation{snapshot: s})
		if got := c.state(0, want); !near(got, 100) {
			t.Errorf("%s: %v s %s, want 100", fault, got, want)
		}
	}
}
