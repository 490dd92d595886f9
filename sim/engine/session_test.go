// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
)

const query = "nvmlDeviceGetMemoryInfo_v2"

func begin(t testing.TB, e *Engine) *Session {
	t.Helper()
	s, code := e.Init("nvmlInit_v2")
	if code != 0 {
		t.Fatalf("Init: %v", code)
	}
	return s
}

func code(s *Session, query string, slot int) nvml.Code { _, c := s.Query(query, slot); return c }

func TestFault_QueryAndGPU_HitsOnlyThem(t *testing.T) {
	tests := map[string]struct {
		fault func(uuid string) Fault
		want  map[string]nvml.Code
	}{
		"one version": {func(string) Fault { return Fault{Query: query, Code: nvml.NotSupported} },
			map[string]nvml.Code{query: nvml.NotSupported, "nvmlDeviceGetMemoryInfo": 0, "nvmlDeviceGetName": 0}},
		"all versions": {func(string) Fault { return Fault{Query: "nvmlDeviceGetMemoryInfo", Code: nvml.NotSupported} },
			map[string]nvml.Code{query: nvml.NotSupported, "nvmlDeviceGetMemoryInfo": nvml.NotSupported, "nvmlDeviceGetName": 0}},
		"every query": {func(string) Fault { return Fault{Query: "*", Code: nvml.Timeout} },
			map[string]nvml.Code{query: nvml.Timeout, "nvmlDeviceGetName": nvml.Timeout}},
		"this GPU": {func(uuid string) Fault { return Fault{Query: query, GPU: uuid, Code: nvml.Unknown} },
			map[string]nvml.Code{query: nvml.Unknown}},
		"another GPU": {func(string) Fault { return Fault{Query: query, GPU: "GPU-other", Code: nvml.Unknown} },
			map[string]nvml.Code{query: 0}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e, _ := machine(t, "hgx-h100")
			s := begin(t, e)
			change(t, e, func(s *State) { s.Faults = []Fault{tt.fault(s.GPUs[1].UUID)} })
			for query, want := range tt.want {
				if got := code(s, query, 1); got != want {
					t.Errorf("%s answers %v, want %v", query, got, want)
				}
			}
		})
	}
}

func TestFault_Count_EndsAfterIt(t *testing.T) {
	for name, writable := range map[string]bool{"in the state file": true, "in the session where the root is read-only": false} {
		t.Run(name, func(t *testing.T) {
			e, root := machine(t, "t4-1")
			s := begin(t, e)
			change(t, e, func(s *State) { s.Faults = []Fault{{Query: query, Code: nvml.Unknown, After: 2, Times: 2}} })
			if !writable {
				// A directory in place of the temporary file makes every write fail, even for root.
				inTheWay := filepath.Join(root, Dir, "state.json.tmp")
				if err := os.Mkdir(inTheWay, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			var got []nvml.Code
			for range 6 {
				got = append(got, code(s, query, 0))
			}
			if diff := cmp.Diff([]nvml.Code{0, 0, nvml.Unknown, nvml.Unknown, 0, 0}, got); diff != "" {
				t.Errorf("answers (-want +got):\n%s", diff)
			}
			if left := len(state(t, e).Faults); writable != (left == 0) {
				t.Errorf("%d faults left in the file", left)
			}
		})
	}
}

func TestFault_Latency_DelaysQuery(t *testing.T) {
	e, _ := machine(t, "t4-1")
	s := begin(t, e)
	change(t, e, func(s *State) { s.Faults = []Fault{{Query: query, Latency: 30 * time.Millisecond}} })
	at := time.Now()
	if c := code(s, query, 0); c != 0 || time.Since(at) < 30*time.Millisecond {
		t.Errorf("answers %v after %s", c, time.Since(at))
	}
}

func TestSession_GPUAddedLater_NotListed(t *testing.T) {
	e, _ := machine(t, "hgx-h100")
	change(t, e, func(s *State) { s.Remove(&s.GPUs[7]) })
	s := begin(t, e)
	change(t, e, func(s *State) { s.Remove(&s.GPUs[3]); s.Add(&s.GPUs[7]) })
	if s.Count() != 7 {
		t.Errorf("the open session counts %d, want the 7 it began with", s.Count())
	}
	if c := code(s, query, 3); c != nvml.GPUIsLost {
		t.Errorf("the removed GPU answers %v", c)
	}
	if c := code(s, query, 7); c != nvml.InvalidArgument {
		t.Errorf("the added GPU answers %v in an older session", c)
	}
	next := begin(t, e)
	if next.Count() != 7 || code(next, query, 7) != 0 {
		t.Errorf("the next session counts %d and the added GPU answers %v", next.Count(), code(next, query, 7))
	}
}

func TestSession_LostGPU_CountedButSilent(t *testing.T) {
	e, _ := machine(t, "hgx-h100")
	change(t, e, func(s *State) { s.GPUs[4].Lost = true })
	s := begin(t, e)
	if s.Count() != 8 || code(s, query, 4) != nvml.GPUIsLost || code(s, query, 5) != 0 {
		t.Errorf("count %d, lost %v, its neighbour %v", s.Count(), code(s, query, 4), code(s, query, 5))
	}
	change(t, e, func(s *State) { s.GPUs[4].Lost = false })
	if c := code(s, query, 4); c != 0 {
		t.Errorf("restored, it answers %v", c)
	}
}

func TestSession_DriverUnloaded_Ends(t *testing.T) {
	e, _ := machine(t, "t4-1")
	s := begin(t, e)
	change(t, e, func(s *State) { s.DriverLoaded = false })
	if c := code(s, query, 0); c != nvml.DriverNotLoaded {
		t.Errorf("a query answers %v", c)
	}
	if _, c := e.Init("nvmlInit_v2"); c != nvml.DriverNotLoaded {
		t.Errorf("Init answers %v", c)
	}
}

func TestMemory_Processes_AddsUp(t *testing.T) {
	e, _ := machine(t, "hgx-h100")
	change(t, e, func(s *State) {
		if err := s.AddProcess(&s.GPUs[0], Process{PID: 9, MemoryMiB: 1000}); err != nil {
			t.Error(err)
		}
		if err := s.AddProcess(&s.GPUs[0], Process{PID: 9, MemoryMiB: 1 << 40}); err == nil {
			t.Error("a process got more memory than there is")
		}
	})
	v, c := begin(t, e).Query(query, 0)
	if c != 0 {
		t.Fatal(c)
	}
	want := nvml.MemoryInfo{Total: 81559 << 20, Reserved: 454 << 20, Used: 1000 << 20, Free: (81559 - 454 - 1000) << 20}
	if diff := cmp.Diff(want, v.Memory()); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
}

func TestCommonAncestor_EachTopology_ReturnsLevel(t *testing.T) {
	tests := []struct {
		profile string
		a, b    int
		want    int
	}{
		{"hgx-h100", 0, 0, Internal}, {"hgx-h100", 0, 1, Node}, {"hgx-h100", 0, 4, System}, {"dgx-a100-40", 0, 1, HostBridge},
		{"dgx-a100-40", 0, 2, System}, {"l40s-4", 0, 1, Node},
	}
	for _, tt := range tests {
		e, _ := machine(t, tt.profile)
		s := begin(t, e)
		a, _ := s.Peer(tt.a)
		b, _ := s.Peer(tt.b)
		if got := CommonAncestor(a, b); got != tt.want {
			t.Errorf("%s, GPUs %d and %d meet at %d, want %d", tt.profile, tt.a, tt.b, got, tt.want)
		}
	}
}

func TestFind_EachName_ReturnsGPU(t *testing.T) {
	e, _ := machine(t, "hgx-h100")
	s := state(t, e).Clone()
	s.Remove(&s.GPUs[0])
	for name, want := range map[string]int{"0": 1, "slot0": 0, s.GPUs[4].UUID: 4, "0000:DF:00.0": 7, "00000000:df:00.0": 7} {
		g, err := s.Find(name)
		if err != nil || g != &s.GPUs[want] {
			t.Errorf("%q finds %v, %v; want slot %d", name, g, err, want)
		}
	}
	for _, name := range []string{"7", "-1", "slot8", "", "GPU-none"} {
		if g, err := s.Find(name); err == nil {
			t.Errorf("%q finds %s", name, g.UUID)
		}
	}
}

func TestBaseName_Versions_RemovesSuffix(t *testing.T) {
	for in, want := range map[string]string{"nvmlInit_v2": "nvmlInit", "nvmlInit": "nvmlInit", "nvmlX_v": "nvmlX_v", "nvmlX_v12": "nvmlX", "_v2": "_v2"} {
		if got := BaseName(in); got != want {
			t.Errorf("BaseName(%q) = %q, want %q", in, got, want)
		}
	}
}
