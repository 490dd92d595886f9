// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/profiles"
)

func machine(t testing.TB, profile string) (*Engine, string) {
	t.Helper()
	p, err := profiles.Load(profile)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(p, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	e := Open(root, nil)
	if err := e.Create(s); err != nil {
		t.Fatal(err)
	}
	return e, root
}

func change(t testing.TB, e *Engine, f func(*State)) {
	t.Helper()
	if err := e.Update(func(s *State) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

func state(t testing.TB, e *Engine) *State {
	t.Helper()
	s, err := e.State()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEngine_Reopened_KeepsState(t *testing.T) {
	e, root := machine(t, "hgx-h100")
	change(t, e, func(s *State) { s.GPUs[2].Lost = true })
	if diff := cmp.Diff(state(t, e), state(t, Open(root, nil))); diff != "" {
		t.Errorf("another process sees another machine:\n%s", diff)
	}
}

func TestState_AfterUpdate_SeesIt(t *testing.T) {
	writer, root := machine(t, "t4-1")
	reader := Open(root, nil)
	for i := range 300 {
		change(t, writer, func(s *State) { s.GPUs[0].Utilization = i % 2 })
		if got := state(t, reader).GPUs[0].Utilization; got != i%2 {
			t.Fatalf("after write %d the reader sees utilization %d", i, got)
		}
	}
}

func TestState_FileUnchanged_NotReadAgain(t *testing.T) {
	e, _ := machine(t, "t4-1")
	if first := state(t, e); first != state(t, e) {
		t.Error("two reads of an unchanged file gave two states")
	}
}

func TestUpdate_ManyWriters_AllCount(t *testing.T) {
	_, root := machine(t, "t4-1")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			e := Open(root, nil)
			for range 10 {
				if err := e.Update(func(s *State) error { s.GPUs[0].TemperatureC++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	s := state(t, Open(root, nil))
	if got := s.GPUs[0].TemperatureC - s.Profile.Board.IdleTempC; got != 80 {
		t.Errorf("80 increments made %d", got)
	}
	if s.Generation != 80 {
		t.Errorf("generation %d after 80 writes", s.Generation)
	}
}

func TestUpdate_Fails_ChangesNothing(t *testing.T) {
	e, _ := machine(t, "t4-1")
	before := state(t, e)
	refused := errors.New("no")
	if err := e.Update(func(s *State) error { s.GPUs[0].Lost = true; return refused }); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if err := e.Update(func(s *State) error { s.BootID = ""; return nil }); err == nil {
		t.Error("a broken state was written")
	}
	if diff := cmp.Diff(before, state(t, e)); diff != "" {
		t.Errorf("changed:\n%s", diff)
	}
}

func TestInit_BrokenStateFile_ReturnsUnknown(t *testing.T) {
	for name, content := range map[string]string{"truncated": `{"version":1`, "empty": "", "another version": `{"version":99}`, "noise": "\x00\xff"} {
		t.Run(name, func(t *testing.T) {
			e, root := machine(t, "t4-1")
			if err := os.WriteFile(filepath.Join(root, Dir, "state.json"), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, code := e.Init("nvmlInit_v2"); code != nvml.Unknown {
				t.Errorf("Init answers %v", code)
			}
			if err := e.Update(func(*State) error { return nil }); err == nil {
				t.Error("Update went on from a broken file")
			}
		})
	}
}

func TestInit_NoMachine_ReturnsDriverNotLoaded(t *testing.T) {
	if _, code := Open(t.TempDir(), nil).Init("nvmlInit_v2"); code != nvml.DriverNotLoaded {
		t.Errorf("Init answers %v", code)
	}
}

func TestReboot_Always_ClearsVolatileState(t *testing.T) {
	e, _ := machine(t, "hgx-h100")
	fresh := state(t, e)
	change(t, e, func(s *State) {
		s.GPUs[0].Lost, s.GPUs[1].ComputeMode, s.GPUs[2].NodeMissing = true, 3, true
		s.Faults = []Fault{{Query: "*", Code: nvml.Unknown}}
		s.DriverLoaded = false
		s.Remove(&s.GPUs[5])
		if err := s.AddProcess(&s.GPUs[3], Process{PID: 7, MemoryMiB: 10}); err != nil {
			t.Error(err)
		}
	})
	change(t, e, (*State).Reboot)
	got := state(t, e)
	if got.BootID == fresh.BootID || got.Boots != 2 {
		t.Errorf("boot %d has the ID %s, the first had %s", got.Boots, got.BootID, fresh.BootID)
	}
	want := fresh.Clone()
	want.Generation, want.Boots, want.BootID = got.Generation, got.Boots, got.BootID
	want.Remove(&want.GPUs[5]) // unplugged boards stay unplugged, and the minor numbers are assigned without a gap
	want.GPUs[6].Minor, want.GPUs[7].Minor = 5, 6
	if diff := cmp.Diff(want, got, cmp.Transformer("nil", func(f []Fault) []Fault { return append([]Fault{}, f...) }),
		cmp.Transformer("nilp", func(p []Process) []Process { return append([]Process{}, p...) })); diff != "" {
		t.Errorf("after the reboot (-want +got):\n%s", diff)
	}
}

func TestNew_OtherSeed_OtherIdentities(t *testing.T) {
	p, err := profiles.Load("t4-1")
	if err != nil {
		t.Fatal(err)
	}
	a, _ := New(p, "a", 0)
	again, _ := New(p, "a", 0)
	b, _ := New(p, "b", 0)
	if a.GPUs[0].UUID != again.GPUs[0].UUID || a.GPUs[0].UUID == b.GPUs[0].UUID {
		t.Errorf("UUIDs %s, %s, %s: want the same for one seed, another for another", a.GPUs[0].UUID, again.GPUs[0].UUID, b.GPUs[0].UUID)
	}
	if _, err := New(p, "", 2); err == nil {
		t.Error("two GPUs in one slot")
	}
}

func FuzzDecode(f *testing.F) {
	for _, name := range profiles.Names() {
		p, err := profiles.Load(name)
		if err != nil {
			f.Fatal(err)
		}
		s, err := New(p, "", 0)
		if err != nil {
			f.Fatal(err)
		}
		s.Faults = []Fault{{Query: "nvmlDeviceGetName", Code: nvml.GPUIsLost, After: 1, Times: 2}}
		b, err := s.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"version":1,"gpus":[{}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil {
			return
		}
		out, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(out); err != nil {
			t.Fatalf("a valid state does not survive a round trip: %v", err)
		}
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, Dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, Dir, "state.json"), b, 0o644); err != nil {
			t.Fatal(err)
		}
		if session, code := Open(root, nil).Init("nvmlInit_v2"); code == 0 {
			for i := range session.Count() {
				slot, _ := session.SlotOf(i)
				session.Peer(slot)
			}
		}
	})
}
