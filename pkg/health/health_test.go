// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
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
		NoRecovery: nil, 0: nil, 1: {Reset}, 2: {Reboot}, 3: {DrainP2P}, 4: {DrainReset}, 5: nil, 6: {BusReset}, 7: {Reboot}, 99: nil,
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

// FuzzGPU compares with the history: a fault is present if fewer than two clean polls in a row followed it.
func FuzzGPU(f *testing.F) {
	f.Add([]byte{1, 0, 0})
	f.Add([]byte{2, 0, 1, 0, 0x40, 0, 0})
	f.Fuzz(func(t *testing.T, polls []byte) {
		var g GPU
		last := map[string]int{} // By state, the poll that showed it last.
		ended, clean := -1, 0
		for i, b := range polls {
			r := Reading{Recovery: int(b&0xf) - 1, RemapFailed: b&0x40 != 0}
			before := g
			g = g.Poll(r)
			if !cmp.Equal(states(before), states(New(before.Faults()))) {
				t.Fatalf("a restart of the plugin changes %v", states(before))
			}
			if s := asked[r.Recovery]; s != "" {
				last[s] = i
			}
			if r.RemapFailed {
				last[Memory] = len(polls)
			}
			if clean++; r.Recovery != 0 {
				clean = 0
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
