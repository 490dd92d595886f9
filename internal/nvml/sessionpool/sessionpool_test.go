// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sessionpool_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// closing is an NVML whose nvmlShutdown goes through Calls, and which counts calls of Open.
type closing struct {
	nvml.Library
	calls *nvmltest.Calls
	opens atomic.Int64
}

func (l *closing) Open() (nvml.Session, error) {
	l.opens.Add(1)
	s, err := l.Library.Open()
	return &closingSession{s, l.calls}, err
}

type closingSession struct {
	nvml.Session
	calls *nvmltest.Calls
}

func (s *closingSession) Close() error {
	s.calls.Do("nvmlShutdown", "", false)
	return s.Session.Close()
}

// TestWith_AnotherBoardInSlot_IsGone opens a slot with the UUID of the board that was there.
func TestWith_AnotherBoardInSlot_IsGone(t *testing.T) {
	machine := simtest.MachineInMemory(t, "hgx-h100", 1)
	state, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	p := sessionpool.New(nvmlfake.New(machine), func(string) bool { return true }, notifytest.Reporter(nil))
	const uuid = "GPU-00000000-0000-4000-8000-000000000000"
	err = p.With(state.GPUs[0].Address, uuid, func(*sessionpool.GPU) error { t.Error("the other board is used"); return nil })
	if !sessionpool.IsGone(err) || !strings.Contains(err.Error(), state.GPUs[0].UUID+" instead of "+uuid) {
		t.Error(err)
	}
}

func TestWith_NVMLHangs_FailsAtLimitAndRecovers(t *testing.T) {
	for _, query := range []string{"nvmlInit_v2", "nvmlShutdown"} {
		t.Run(query, func(t *testing.T) {
			machine := simtest.MachineInMemory(t, "hgx-h100", 1)
			state, err := machine.State()
			if err != nil {
				t.Fatal(err)
			}
			g, calls := state.GPUs[0], &nvmltest.Calls{}
			library := &closing{Library: nvmlfake.WithHook(machine, calls.Do), calls: calls}
			p := sessionpool.New(library, func(string) bool { return true }, notifytest.Reporter(nil))
			p.After = calls.After
			use := func(*sessionpool.GPU) error { return nil }
			hung := calls.Hang(nvmltest.Of(query, ""))
			// Undo that removes nothing closes the session and opens it again.
			done := make(chan error, 1)
			go func() {
				done <- p.Undo(g.Address, g.UUID, func(*sessionpool.GPU) (bool, error) { return false, nil })
			}()
			<-hung
			calls.Expire()
			if err := <-done; !errors.Is(err, nvml.Timeout) || sessionpool.IsGone(err) {
				t.Errorf("the first operation: %v", err)
			}
			for range 3 {
				if err := p.With(g.Address, g.UUID, use); !errors.Is(err, nvml.Timeout) {
					t.Errorf("a later operation: %v", err)
				}
			}
			if n := library.opens.Load(); n != 1 || len(hung) > 0 {
				t.Errorf("%d calls of Open, and %d more calls hang", n, len(hung))
			}
			calls.Clear()
			if err := p.With(g.Address, g.UUID, use); err != nil {
				t.Errorf("after the call answered: %v", err)
			}
		})
	}
}

func TestGPUInstanceProfiles_SameSession_AskedOnce(t *testing.T) {
	machine := simtest.MachineInMemory(t, "hgx-h100", 2)
	state, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	asked := map[string]int{}
	library := nvmlfake.WithHook(machine, func(query, gpu string, _ bool) nvml.Code {
		if strings.Contains(query, "GpuInstanceProfileInfo") {
			asked[gpu]++
		}
		return 0
	})
	p := sessionpool.New(library, func(string) bool { return true }, notifytest.Reporter(nil))
	list := func(g *sessionpool.GPU) (bool, error) {
		profiles, err := g.GPUInstanceProfiles()
		if err == nil && len(profiles) == 0 {
			t.Error("no profile is listed")
		}
		return true, err
	}
	for _, g := range []int{0, 1, 0} {
		if err := p.Undo(state.GPUs[g].Address, state.GPUs[g].UUID, list); err != nil {
			t.Fatal(err)
		}
	}
	first, second := asked[state.GPUs[0].UUID], asked[state.GPUs[1].UUID]
	if first == 0 || first != second {
		t.Errorf("the first GPU was asked %d times for two lists, the second %d times for one", first, second)
	}
	// An Undo that removes nothing opens another session, perhaps of another driver.
	if err := p.Undo(state.GPUs[0].Address, state.GPUs[0].UUID, func(g *sessionpool.GPU) (bool, error) {
		_, err := list(g)
		return false, err
	}); err != nil {
		t.Fatal(err)
	}
	if again := asked[state.GPUs[0].UUID]; again != 2*first {
		t.Errorf("after a new session the first GPU was asked %d times, want %d", again, 2*first)
	}
}
