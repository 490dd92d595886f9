// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/gpu"
)

func states(g GPU) (out []string) {
	for _, f := range g.Faults() {
		out = append(out, f.State)
	}
	return out
}

func TestPoll_RecoveryActions_GiveStates(t *testing.T) {
	for action, want := range map[int][]string{
		NoRecovery: nil, 0: nil, 1: {Reset}, 2: {Reboot}, 3: {DrainP2P}, 4: {DrainReset}, 5: nil, 6: {busReset}, 7: {Reboot}, 99: nil,
	} {
		if got := states(GPU{}.Poll(Reading{Recovery: action})); !cmp.Equal(got, want) {
			t.Errorf("recovery action %d: %v, want %v", action, got, want)
		}
	}
}

func TestPoll_Sequences_EndFaultsAfterTwoCleanPolls(t *testing.T) {
	for name, tc := range map[string]struct {
		polls []Reading
		want  []string
	}{
		"one clean poll":                 {[]Reading{{Recovery: 1}, {}}, []string{Reset}},
		"two clean polls":                {[]Reading{{Recovery: 1}, {}, {}}, nil},
		"clean polls with one between":   {[]Reading{{Recovery: 1}, {}, {Recovery: 1}, {}}, []string{Reset}},
		"a milder action":                {[]Reading{{Recovery: 2}, {Recovery: 3}}, []string{Reboot, DrainP2P}},
		"an action of several nodes":     {[]Reading{{Recovery: 1}, {}, {Recovery: 5}, {}}, []string{Reset}},
		"an action that is not known":    {[]Reading{{Recovery: 1}, {}, {Recovery: 99}, {}}, []string{Reset}},
		"no action in this driver":       {[]Reading{{Recovery: 1}, {Recovery: NoRecovery}, {Recovery: NoRecovery}}, []string{Reset}},
		"memory stays":                   {[]Reading{{RemapFailed: true}, {}, {}, {}}, []string{Memory}},
		"memory stays, the other ends":   {[]Reading{{Recovery: 4, RemapFailed: true}, {RemapFailed: true}, {RemapFailed: true}}, []string{Memory}},
		"memory and no action in driver": {[]Reading{{Recovery: NoRecovery, RemapFailed: true}}, []string{Memory}},
		"too many errors in SRAM":        {[]Reading{{SRAMWorn: true}, {}, {}}, []string{Memory}},
	} {
		var g GPU
		for _, r := range tc.polls {
			g = g.Poll(r)
		}
		if got := states(g); !cmp.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestClearing_AfterOneCleanPoll_AsksForAnother(t *testing.T) {
	g := GPU{}.Poll(Reading{Recovery: 1})
	if g.Clearing() || !g.Poll(Reading{}).Clearing() || g.Poll(Reading{}).Poll(Reading{}).Clearing() {
		t.Error("only the first clean poll needs another one soon")
	}
	if (GPU{}).Poll(Reading{}).Clearing() || (GPU{}).Poll(Reading{RemapFailed: true}).Poll(Reading{}).Clearing() {
		t.Error("a healthy GPU, or one whose memory is faulty, needs no poll soon")
	}
}

func TestRestarted_Reboot_KeepsFaultsOfTheBoard(t *testing.T) {
	g := GPU{}.Poll(Reading{Recovery: 2, RemapFailed: true}).Restarted()
	if got := states(g); !cmp.Equal(got, []string{Memory}) {
		t.Errorf("%v", got)
	}
}

func TestNew_UnknownState_IsLeftOut(t *testing.T) {
	g := New([]gpu.Fault{{State: Memory}, {State: "of a later version"}, {State: Reboot}, {State: Reboot}})
	if got := states(g); !cmp.Equal(got, []string{Reboot, Memory}) {
		t.Errorf("%v", got)
	}
}

// TestXIDs_Catalogue_MatchesNVIDIAs compares with the lists of immediate actions in NVIDIA's catalogue.
func TestXIDs_Catalogue_MatchesNVIDIAs(t *testing.T) {
	for class, want := range map[Class]string{
		application:   "8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139",
		ignorable:     "37 38 43 44 63 66 67 92 93 106 107 121 137 141 152 153 157 160 161",
		needsReset:    "46 62 64 95 109 110 119 120 136 140 143 155 156 158",
		needsReboot:   "79 151",
		workflow:      "45 48 54 74 142 144-150 159",
		actionChanged: "154",
	} {
		var codes, got []uint64
		for _, field := range strings.Fields(want) {
			first, last, _ := strings.Cut(field, "-")
			from, _ := strconv.ParseUint(first, 10, 64)
			if last == "" {
				last = first
			}
			to, _ := strconv.ParseUint(last, 10, 64)
			for ; from <= to; from++ {
				codes = append(codes, from)
			}
		}
		for _, x := range XIDs {
			if x.Class == class {
				got = append(got, x.Code)
			}
			if x.Name == "" || XIDOf(x.Code) != x || consequences[x.Class] == "" {
				t.Errorf("%+v", x)
			}
		}
		if diff := cmp.Diff(codes, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", class, diff)
		}
	}
	for got, want := range map[string]string{
		XIDOf(31).Text(true, true):   "XID 31, GPU memory page fault: the program's fault; the GPU is healthy",
		XIDOf(31).Text(true, false):  "XID 31, GPU memory page fault: the program's fault",
		XIDOf(31).Text(false, true):  "XID 31, GPU memory page fault: the fault of a program, perhaps of another pod; the GPU is healthy",
		XIDOf(62).Text(false, false): "XID 62, microcontroller halt: the GPU needs a reset",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, code := range []uint64{0, 999, math.MaxUint64} {
		if x := XIDOf(code); x.Class != Unlisted || x.State() != "" || !strings.Contains(x.Remedy(), "kernel log") {
			t.Errorf("%d: %+v", code, x)
		}
	}
}

func TestEvent_Drivers_TableDecidesOnlyWithoutRecoveryActions(t *testing.T) {
	settings := Settings{Ignore: []uint64{46}, Taint: []uint64{94, 95}}
	for code, want := range map[uint64]struct{ old, new []string }{
		31: {nil, nil}, 63: {nil, nil}, 154: {nil, nil}, 999: {nil, nil}, math.MaxUint64: {nil, nil},
		62: {[]string{Reset}, nil}, 151: {[]string{Reboot}, nil},
		79: {[]string{Lost}, []string{Lost}},
		46: {nil, nil}, 94: {[]string{Named}, []string{Named}}, 95: {[]string{Reset}, []string{Named}},
	} {
		if got := states(GPU{}.Poll(Reading{Recovery: NoRecovery}).Event(code, settings)); !cmp.Equal(got, want.old) {
			t.Errorf("XID %d, no recovery actions: %v, want %v", code, got, want.old)
		}
		if got := states(GPU{}.Poll(Reading{}).Event(code, settings)); !cmp.Equal(got, want.new) {
			t.Errorf("XID %d, recovery action none: %v, want %v", code, got, want.new)
		}
	}
}

func TestEvent_Sequences_OnlyPollsEndFaults(t *testing.T) {
	xid := func(code uint64) func(GPU) GPU {
		return func(g GPU) GPU { return g.Event(code, Settings{Taint: []uint64{13}}) }
	}
	poll := func(recovery int) func(GPU) GPU {
		return func(g GPU) GPU { return g.Poll(Reading{Recovery: recovery}) }
	}
	restart := func(g GPU) GPU { return g.Restarted() }
	for name, tc := range map[string]struct {
		steps []func(GPU) GPU
		want  []string
	}{
		"a milder XID follows":                  {[]func(GPU) GPU{xid(79), xid(31), xid(154), xid(43)}, []string{Lost}},
		"the milder XID comes first":            {[]func(GPU) GPU{xid(31), xid(62), xid(79)}, []string{Lost, Reset}},
		"a driver without recovery actions":     {[]func(GPU) GPU{xid(62), poll(NoRecovery), poll(NoRecovery), poll(NoRecovery)}, []string{Reset}},
		"it reboots":                            {[]func(GPU) GPU{xid(62), xid(13), restart}, nil},
		"the driver says none, twice":           {[]func(GPU) GPU{xid(79), poll(0), poll(0)}, nil},
		"an XID between two polls":              {[]func(GPU) GPU{poll(0), xid(79), poll(0)}, []string{Lost}},
		"polls do not end an administrator's":   {[]func(GPU) GPU{xid(13), poll(0), poll(0), poll(0)}, []string{Named}},
		"application XIDs do not delay the end": {[]func(GPU) GPU{poll(1), poll(0), xid(31), poll(0)}, nil},
	} {
		var g GPU
		for _, step := range tc.steps {
			g = step(g)
		}
		if got := states(g); !cmp.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// FuzzGPU compares with the history: a fault is present if fewer than two clean polls in a row followed it. An XID,
// with the bit 0x80, is a poll that shows its state and asks for another recovery action than none.
func FuzzGPU(f *testing.F) {
	f.Add([]byte{1, 0, 0})
	f.Add([]byte{1, 0xa0, 1, 1})
	f.Add([]byte{0, 0xa0, 0xa1, 1, 0})
	f.Add([]byte{2, 0, 1, 0, 0x40, 0, 0})
	f.Fuzz(func(t *testing.T, polls []byte) {
		var g GPU
		last := map[string]int{} // By state, the poll that showed it last.
		ended, clean := -1, 0
		for i, b := range polls {
			r := Reading{Recovery: int(b&0xf) - 1, RemapFailed: b&0x40 != 0}
			before := g
			if b&0x80 != 0 {
				code := XIDs[int(b&0x7f)%len(XIDs)].Code
				if g = g.Event(code, Settings{}); code == OffTheBus || !before.decides && XIDOf(code).State() != "" {
					last[XIDOf(code).State()], clean = i, 0
				}
				r = Reading{Recovery: -2}
			} else if g = g.Poll(r); r.Recovery != 0 {
				clean = 0
			} else {
				clean++
			}
			if !cmp.Equal(states(before), states(New(before.Faults()))) {
				t.Fatalf("a restart of the plugin changes %v", states(before))
			}
			if s := asked[r.Recovery]; s != "" {
				last[s] = i
			}
			if r.RemapFailed && b&0x80 == 0 {
				last[Memory] = len(polls)
			}
			if clean >= cleanPolls {
				ended, clean = i, 0
			}
			var want []string
			for _, s := range States {
				if at, ok := last[s.Name]; ok && at > ended {
					want = append(want, s.Name)
				}
			}
			if got := states(g); !cmp.Equal(got, want) {
				t.Fatalf("after %v: %v, want %v", polls[:i+1], got, want)
			}
		}
	})
}
