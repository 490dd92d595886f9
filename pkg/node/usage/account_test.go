// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
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

// after observes the same node at 0 s and, with the plans, at 100 s.
func after(t *testing.T, o Observation) Account {
	t.Helper()
	var a Account
	a.Advance("boot", 0, o)
	a.Advance("boot", 100*time.Second, o)
	return a
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

func TestAccount_Devices_ChargeTheirPartOfTheBoard(t *testing.T) {
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
		states  map[State]float64
	}{
		"nothing":                 {nil, 0, map[State]float64{Free: 200}},
		"a whole GPU":             {[]plan.Device{whole(0)}, 100, map[State]float64{Allocated: 100, Free: 100}},
		"a group of two":          {[]plan.Device{group(0), group(1)}, 200, map[State]float64{Allocated: 200}},
		"admin access":            {[]plan.Device{admin}, 0, map[State]float64{Free: 200}},
		"one of eight slices":     {[]plan.Device{partition(0, "1g.10gb", 0)}, 12.5, map[State]float64{Allocated: 12.5, Free: 187.5}},
		"four of eight slices":    {[]plan.Device{partition(0, "3g.40gb", 4)}, 50, map[State]float64{Allocated: 50, Free: 150}},
		"the larger is memory":    {[]plan.Device{share(whole(0), 40, 10, 8)}, 40, map[State]float64{Allocated: 40, Free: 160}},
		"the larger is compute":   {[]plan.Device{share(whole(0), 10, 75, 8)}, 75, map[State]float64{Allocated: 75, Free: 125}},
		"two GPUs":                {[]plan.Device{whole(0), whole(1)}, 200, map[State]float64{Allocated: 200}},
		"all of a GPU's memory":   {[]plan.Device{share(whole(0), 100, 0, 8)}, 100, map[State]float64{Allocated: 100, Free: 100}},
		"two shares of one claim": {[]plan.Device{share(whole(0), 10, 0, 8), share(whole(0), 10, 0, 8)}, 20, map[State]float64{Allocated: 20, Free: 180}},
		"the last share":          {[]plan.Device{share(whole(0), 40, 0, 1)}, 40, map[State]float64{Allocated: 40, Blocked: 60, Free: 100}},
		"a share of a partition":  {[]plan.Device{share(partition(0, "3g.40gb", 4), 50, 0, 8)}, 25, map[State]float64{Allocated: 25, Free: 175}},
		// A share with much memory and one with much compute take more together than the partition has.
		"different shares of a partition": {
			[]plan.Device{share(partition(0, "3g.40gb", 4), 70, 10, 8), share(partition(0, "3g.40gb", 4), 20, 80, 8)}, 50,
			map[State]float64{Allocated: 50, Free: 150},
		},
		"different shares of a GPU": {
			[]plan.Device{share(whole(0), 70, 10, 8), share(whole(0), 10, 75, 8)}, 100, map[State]float64{Allocated: 100, Free: 100},
		},
		// With 4g.40gb and 3g.40gb no compute slice is left; with 3g.40gb twice, one is, but no memory slice.
		"no compute slice left": {
			[]plan.Device{partition(0, "4g.40gb", 0), partition(0, "1g.20gb", 4), partition(0, "1g.10gb", 6), partition(1, "7g.80gb", 0)}, 187.5,
			map[State]float64{Allocated: 187.5, Blocked: 12.5},
		},
		"seven small ones": {
			[]plan.Device{
				partition(0, "1g.10gb", 0), partition(0, "1g.10gb", 1), partition(0, "1g.10gb", 2), partition(0, "1g.10gb", 3),
				partition(0, "1g.10gb", 4), partition(0, "1g.10gb", 5), partition(0, "1g.10gb", 6), whole(1),
			}, 187.5, map[State]float64{Allocated: 187.5, Blocked: 12.5},
		},
	} {
		a := after(t, Observation{Snapshot: node(2), Plans: []plan.Plan{claim("c", c.devices...)}})
		got, states := 0., map[State]float64{}
		for _, use := range a.Claims["c"].GPUs {
			got += use.Allocated
		}
		for _, g := range a.GPUs {
			for state, seconds := range g.Seconds {
				states[state] += seconds
			}
		}
		if !near(got, c.want) {
			t.Errorf("%s: charged %v, want %v", name, got, c.want)
		}
		for _, state := range States {
			if !near(states[state], c.states[state]) {
				t.Errorf("%s: %v s %s, want %v", name, states[state], state, c.states[state])
			}
		}
	}
}

func TestAccount_FaultMissingServed_UnhealthyAndBlocked(t *testing.T) {
	s := node(4)
	s.GPUs[0].Faults = []gpu.Fault{{State: "reset"}}
	s.GPUs[1].Faults = s.GPUs[0].Faults
	plans := []plan.Plan{claim("c", partition(1, "3g.40gb", 0))}
	o := Observation{Snapshot: s, Plans: plans, Served: map[string]string{address(2): "nvidia.com/gpu"}}
	var a Account
	a.Advance("boot", 0, o)
	o.Snapshot.GPUs = s.GPUs[:3] // The last board falls off the bus.
	a.Advance("boot", 0, o)
	a.Advance("boot", 100*time.Second, o)
	for i, want := range []map[State]float64{{Unhealthy: 100}, {Allocated: 50, Unhealthy: 50}, {Blocked: 100}, {Unhealthy: 100}} {
		for _, state := range States {
			if got := a.GPUs[address(i)].Seconds[state]; !near(got, want[state]) {
				t.Errorf("GPU %d: %v s %s, want %v", i, got, state, want[state])
			}
		}
	}
}

// TestAccount_RandomDays_StatesAddUpToWallClock starts and ends claims, breaks boards, restarts the plugin, kills it
// between two saves and reboots the node.
func TestAccount_RandomDays_StatesAddUpToWallClock(t *testing.T) {
	for seed := range seedtest.Each(t, 200) {
		r := rand.New(rand.NewPCG(seed, 1))
		const gpus = 3
		o := Observation{Snapshot: node(gpus)}
		a, saved := Account{}, []byte(nil)
		boot, at, counted := 0, time.Duration(r.IntN(1e12)), time.Duration(0)
		advance := func(elapsed time.Duration) {
			at += elapsed
			a.Advance(fmt.Sprint("boot", boot), at, o)
		}
		advance(0)
		restart := func() {
			var err error
			if a, err = decode(saved); err != nil {
				t.Fatal(err)
			}
		}
		for step := range 60 {
			rebooted := false
			elapsed := time.Duration(r.Int64N(int64(time.Minute)))
			switch r.IntN(8) {
			case 0, 1:
				i := r.IntN(gpus)
				devices := []plan.Device{whole(i), partition(i, "3g.40gb", 4), share(whole(i), uint64(r.IntN(101)), r.IntN(101), r.IntN(3)), partition(i, "1g.10gb", r.IntN(7))}
				o.Plans = append(o.Plans, claim(fmt.Sprint(step), devices[r.IntN(len(devices))]))
			case 2:
				o.Plans = nil
			case 3:
				i := r.IntN(gpus)
				o.Snapshot = node(gpus)
				o.Snapshot.GPUs[i].Faults = []gpu.Fault{{State: "reset"}}
			case 4:
				o.Snapshot.GPUs = o.Snapshot.GPUs[:r.IntN(gpus)]
			case 5:
				if saved != nil {
					restart()
				}
			case 6:
				if saved == nil {
					break
				}
				// The time since the last save and until the plugin runs again is not the driver's to count.
				counted -= at - a.At
				before := a.At
				restart()
				counted -= before - a.At
				boot, at, elapsed, rebooted = boot+1, time.Duration(r.IntN(1e9)), 0, true
				o.Snapshot = node(gpus)
			}
			advance(elapsed)
			counted += elapsed
			if rebooted || r.IntN(3) == 0 { // The first save of a boot is at once.
				var err error
				if saved, err = json.Marshal(&a); err != nil {
					t.Fatal(err)
				}
			}
		}
		for slot, g := range a.GPUs {
			sum := 0.
			for _, seconds := range g.Seconds {
				sum += seconds
			}
			if math.Abs(sum-counted.Seconds()) > 1e-3 {
				t.Fatalf("seed %d: the states of %s add up to %v s, the clock says %v s", seed, slot, sum, counted.Seconds())
			}
		}
	}
}

func TestAccount_ClaimStartsAndEnds_ChargedForItsTime(t *testing.T) {
	var a Account
	held := Observation{Snapshot: node(1), Plans: []plan.Plan{claim("c", whole(0))}}
	a.Advance("boot", 10*time.Second, Observation{Snapshot: node(1)})
	a.Advance("boot", 20*time.Second, held)
	if use := a.Claims["c"].GPUs[address(0)]; use != (Use{UUID: uuid(0), Model: "NVIDIA H100"}) {
		t.Errorf("a new claim has %+v, want no seconds", use)
	}
	a.Advance("boot", 50*time.Second, held)
	if got := a.Claims["c"].GPUs[address(0)].Allocated; !near(got, 30) {
		t.Errorf("charged %v s, want 30", got)
	}
	a.Advance("boot", 55*time.Second, Observation{Snapshot: node(1)})
	if got := a.GPUs[address(0)].Seconds; len(a.Claims) != 0 || !near(got[Allocated], 35) || !near(got[Free], 10) {
		t.Errorf("%d claims left, %v; want none, 35 s allocated, 10 s free", len(a.Claims), got)
	}
}

func TestAccount_ShortClaim_CountsForItsNamespace(t *testing.T) {
	var a Account
	long := claim("long", whole(0))
	long.Claim.Namespace = "team-b"
	only, both := Observation{Snapshot: node(2), Plans: []plan.Plan{long}}, Observation{Snapshot: node(2), Plans: []plan.Plan{long, claim("short", whole(1))}}
	a.Advance("boot", 0, only)
	a.Advance("boot", 2*time.Second, both)
	a.Advance("boot", 6*time.Second, only)
	a.Advance("boot", 10*time.Second, only)
	want := func(team string, seconds float64, present bool) {
		t.Helper()
		n, ok := a.Namespaces[team]
		if got := n.Seconds["NVIDIA H100"]; ok != present || !near(got, seconds) {
			t.Errorf("%s has %v GPU seconds, want %v", team, n, seconds)
		}
	}
	want("team-a", 4, true)
	want("team-b", 10, true)
	// A reboot does not end the sums of a namespace.
	a.Advance("other", 5*time.Second, only)
	want("team-a", 4, true)
	a.Advance("other", keepNamespace, only)
	want("team-a", 0, false)
	want("team-b", 10+(keepNamespace-5*time.Second).Seconds(), true)
}

// TestAccount_ManyNamespaces_LastOnesStay creates a namespace for each claim, thousands of times on one day.
func TestAccount_ManyNamespaces_LastOnesStay(t *testing.T) {
	var a Account
	long := claim("long", whole(0))
	long.Claim.Namespace = "long"
	const namespaces = 5000
	for i := range namespaces {
		short := claim(fmt.Sprint(i), whole(1))
		short.Claim.Namespace = fmt.Sprint("team-", i)
		a.Advance("boot", time.Duration(i)*4*time.Second, Observation{Snapshot: node(2), Plans: []plan.Plan{long, short}})
	}
	if len(a.Namespaces) > keepNamespaces+2 {
		t.Errorf("%d namespaces after %d, want at most %d", len(a.Namespaces), namespaces, keepNamespaces+2)
	}
	for _, name := range []string{"long", fmt.Sprint("team-", namespaces-1), fmt.Sprint("team-", namespaces-keepNamespaces)} {
		if _, ok := a.Namespaces[name]; !ok {
			t.Errorf("the namespace %s is forgotten", name)
		}
	}
}

func TestAccount_PluginRestarts_ChargesTimeBetween(t *testing.T) {
	held := Observation{Snapshot: node(1), Plans: []plan.Plan{claim("c", whole(0))}}
	before := after(t, held)
	data, err := json.Marshal(&before)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		boot string
		at   time.Duration
		want float64
	}{"same boot": {"boot", 400 * time.Second, 400}, "reboot": {"boot 2", 30 * time.Second, 100}} {
		a, err := decode(data)
		if err != nil {
			t.Fatal(err)
		}
		a.Advance(c.boot, c.at, held)
		if got := a.Claims["c"].GPUs[address(0)].Allocated; !near(got, c.want) {
			t.Errorf("%s: charged %v s, want %v", name, got, c.want)
		}
	}
}

func TestAccount_OtherBoardInSlot_StartsAgain(t *testing.T) {
	a := after(t, Observation{Snapshot: node(1)})
	s := node(1)
	s.GPUs[0].UUID = "GPU-new"
	a.Advance("boot", 200*time.Second, Observation{Snapshot: s})
	if g := a.GPUs[address(0)]; g.UUID != "GPU-new" || !near(g.Seconds[Free], 100) {
		t.Errorf("%+v, want the new board with 100 s", g)
	}
}

func TestAccount_Activity_IntegratedByWeight(t *testing.T) {
	busy, half := partition(0, "3g.40gb", 4), whole(1)
	half.Share = plan.Share{MemoryBytes: 40, DeviceMemoryBytes: 80}
	o := Observation{
		Snapshot: node(3), Plans: []plan.Plan{claim("busy", busy, busy), claim("unknown", whole(2)), claim("share", half)},
		Activity: map[[2]int]Activity{
			{0, 0}: {Utilization: .2, Source: "gpm", Occupied: true, Watched: true}, {0, 1}: {Utilization: .2, Source: "gpm", Occupied: true, Watched: true},
			{2, 0}: {Utilization: .8, Source: "nvml"},
		},
	}
	a := after(t, o)
	if use := a.Claims["busy"].GPUs[address(0)]; !near(use.Active, 20) || !near(use.Occupied, 100) || use.Source != "gpm" || !use.Watched {
		t.Errorf("%+v, want 20 active and 100 occupied seconds", use)
	}
	o.Activity = map[[2]int]Activity{}
	b := a.Clone()
	b.Advance("boot", 150*time.Second, o)
	if use := b.Claims["busy"].GPUs[address(0)]; !near(use.Active, 20) || use.Source != "" || use.Watched {
		t.Errorf("%+v, want the sums of the time in which the use could be measured, not valid", use)
	}
	if use := a.Claims["unknown"].GPUs[address(2)]; use.Source != "" || use.Watched {
		t.Errorf("%+v, want no measurement", use)
	}
	if use := a.Claims["share"].GPUs[address(1)]; !near(use.Active, 50) || use.Watched {
		t.Errorf("%+v, want 50 active seconds, and unknown processes", use)
	}
}

// TestAccount_NewClaim_NoActivityBeforeIt has a claim get a busy GPU between two observations.
func TestAccount_NewClaim_NoActivityBeforeIt(t *testing.T) {
	var a Account
	a.Advance("boot", 0, Observation{Snapshot: node(1)})
	o := Observation{
		Snapshot: node(1), Plans: []plan.Plan{claim("new", whole(0))},
		Activity: map[[2]int]Activity{{}: {Utilization: 1, Source: "nvml", Occupied: true, Watched: true}},
	}
	for at, want := range []float64{0, 10} {
		a.Advance("boot", time.Duration(at+1)*10*time.Second, o)
		if use := a.Claims["new"].GPUs[address(0)]; !near(use.Allocated, want) || !near(use.Active, want) || !near(use.Occupied, want) || use.Source != "nvml" || !use.Watched {
			t.Errorf("%+v, want %v allocated, active and occupied seconds", use, want)
		}
	}
}

// TestAccount_SharesOfOneDevice_ActiveAtMostAllocated has a claim with a share of much memory and one of much compute.
func TestAccount_SharesOfOneDevice_ActiveAtMostAllocated(t *testing.T) {
	a := after(t, Observation{
		Snapshot: node(1), Plans: []plan.Plan{claim("c", share(whole(0), 70, 10, 8), share(whole(0), 20, 80, 8))},
		Activity: map[[2]int]Activity{{0, 0}: {Utilization: 1, Source: "nvml"}, {0, 1}: {Utilization: 1, Source: "nvml"}},
	})
	if use := a.Claims["c"].GPUs[address(0)]; !near(use.Allocated, 100) || !near(use.Active, 100) {
		t.Errorf("%+v, want 100 allocated and active seconds", use)
	}
}

func decode(data []byte) (a Account, err error) {
	err = json.Unmarshal(data, &a)
	a.Check()
	return a, err
}

func FuzzCheck(f *testing.F) {
	a := Account{}
	a.Advance("boot", 5, Observation{Snapshot: node(1), Plans: []plan.Plan{claim("c", whole(0))}})
	data, err := json.Marshal(&a)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"gpus":{"0000:01:00.0":{"seconds":null}},"claims":{"c":{}}}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		a, err := decode(data)
		if err != nil {
			return
		}
		o := Observation{Snapshot: node(2), Plans: []plan.Plan{claim("c", whole(0)), claim("d", partition(1, "3g.40gb", 4))}}
		a.Advance(a.BootID, 10*time.Second, o)
		a.Advance("another", 1, o)
	})
}

// TestAccount_Faults_UnhealthyIfGPUIsUnavailable counts a GPU as free while a fault takes only its groups.
func TestAccount_Faults_UnhealthyIfGPUIsUnavailable(t *testing.T) {
	for fault, want := range map[string]State{health.Reset: Unhealthy, health.Named: Unhealthy, "unknown": Unhealthy, health.DrainP2P: Free} {
		s := node(1)
		s.GPUs[0].Faults = []gpu.Fault{{State: fault}}
		a := after(t, Observation{Snapshot: s})
		if g := a.GPUs[address(0)]; !near(g.Seconds[want], 100) {
			t.Errorf("%s: %v, want 100 s %s", fault, g.Seconds, want)
		}
	}
}
