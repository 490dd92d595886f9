// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/show/view"
)

var update = flag.Bool("update", false, "write the golden file again")

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// fleet has nodes of two GPUs, of which every third is used.
func fleet(nodes int) (out []view.Node, use Use) {
	use = Use{GPUs: map[view.GPUName]view.GPUUse{}, Parts: map[view.PartName]view.GPUUse{}}
	for i := range nodes {
		n := view.Node{Name: fmt.Sprintf("worker-%04d", i)}
		for j := range 2 {
			at := 2*i + j
			g := view.GPU{
				Node: n.Name, Name: fmt.Sprintf("gpu-0000-%02x-00-0", 16+j), UUID: fmt.Sprintf("GPU-%d", at), Product: "NVIDIA H100 80GB HBM3", Use: view.Free,
				Devices: []view.PublishedDevice{{Name: fmt.Sprintf("gpu-0000-%02x-00-0", 16+j)}},
			}
			used, total, busy := float64(at%80)*(1<<30), float64(80<<30), float64(at%100)/100
			if at%3 == 0 {
				g.Use = view.Whole
				g.Allocations = []view.Allocation{{Device: g.Name, Claim: view.ClaimRef{Namespace: "team-a", Name: fmt.Sprintf("train-%d", at)}}}
			}
			if at%7 == 3 {
				g.Health = "lost"
			}
			if at%5 != 4 {
				use.GPUs[view.GPUName{Node: g.Node, Name: g.Name}] = view.GPUUse{Utilization: &busy, MemoryUsedBytes: &used, MemoryTotalBytes: &total}
			}
			n.GPUs = append(n.GPUs, g)
		}
		out = append(out, n)
	}
	return out, use
}

func screen(nodes, width, height int) *Screen {
	s := &Screen{Width: width, Height: height}
	all, use := fleet(nodes)
	s.Set(all, use, noon)
	return s
}

// partsOf has a GPU with a partition and a GPU with two shares, of which one was measured.
func partsOf(t *testing.T, key string) *Screen {
	t.Helper()
	all, use := fleet(1)
	half, few := 0.5, float64(3<<30)
	granted := float64(20 << 30)
	cut, shared := &all[0].GPUs[0], &all[0].GPUs[1]
	cut.MemoryBytes, shared.MemoryBytes = 80<<30, 80<<30
	claim := view.ClaimRef{Namespace: "team-b", Name: "notebook"}
	cut.Use, cut.Allocations = view.Cut, []view.Allocation{{
		Device: cut.Name + "-mig-1g-10gb-0", Kind: gpu.KindMIG, Profile: "1g.10gb", Size: 1, Claim: view.ClaimRef{Namespace: "team-a", Name: "part"},
	}}
	shared.Use, shared.Allocations = "shared", []view.Allocation{
		{Device: shared.Name, Kind: gpu.KindGPU, Share: "1", ShareBytes: 20 << 30, Claim: claim},
		{Device: shared.Name, Kind: gpu.KindGPU, Share: "2", ShareBytes: 40 << 30, Compute: 30, Claim: view.ClaimRef{Namespace: "team-b", Name: "serve"}},
	}
	use.Parts[view.PartName{Node: shared.Node, Device: shared.Name, Claim: claim}] = view.GPUUse{
		Utilization: &half, MemoryUsedBytes: &few, MemoryTotalBytes: &granted,
	}
	s := &Screen{Width: 110, Height: 9}
	s.Set(all, use, noon)
	s.Key(key)
	return s
}

func keys(s *Screen, all ...string) *Screen {
	for _, k := range all {
		s.Key(k)
	}
	return s
}

// TestScreen_Golden_HasBarsAndHolders has a small and a large terminal.
func TestScreen_Golden_HasBarsAndHolders(t *testing.T) {
	var b strings.Builder
	for _, c := range []struct {
		name string
		s    *Screen
	}{
		{"80 columns", screen(4, 80, 12)}, {"140 columns, by utilization", keys(screen(4, 140, 12), "s")},
		{"a filter", keys(screen(4, 100, 6), "/", "t", "r", "a", "i", "n", "-", "6", "enter")}, {"typing", keys(screen(4, 80, 5), "/", "l", "o", "s")},
		{"no figures", func() *Screen {
			s := &Screen{Width: 100, Height: 5}
			all, _ := fleet(1)
			s.Set(all, Use{}, noon)
			return s
		}()},
		{"a read failed", func() *Screen {
			s := screen(1, 100, 5)
			s.Fail("list ResourceSlices: the API server\ndoes not answer")
			return s
		}()},
		{"nothing yet", &Screen{Width: 60, Height: 4}},
		{"parts", partsOf(t, "")}, {"without parts", partsOf(t, "p")},
	} {
		fmt.Fprintf(&b, "== %s\n%s\n", c.name, regexp.MustCompile(` +\n`).ReplaceAllString(c.s.String()+"\n", "\n"))
	}
	const golden = "testdata/screen.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the screens differ from %s:\n%s", golden, b.String())
	}
}

// TestScreen_EachSizeAndKey_FitsTheTerminal presses keys at terminals of all sizes, with and without colours.
func TestScreen_EachSizeAndKey_FitsTheTerminal(t *testing.T) {
	for width := range 130 {
		for _, height := range []int{0, 1, 2, 3, 4, 24} {
			s := screen(20, width, height)
			s.Colours = width%2 == 0
			for _, key := range []string{"", "down", "pgdown", "end", "s", "up", "s", "pgup", "home", "s", "/", "a", "ä", "backspace", "backspace", "backspace", "界", "x", "enter", "esc", "G", "unknown"} {
				s.Key(key)
				lines := strings.Split(s.String(), "\n")
				if height > 2 && len(lines) != height {
					t.Fatalf("%d×%d after %q: %d lines", width, height, key, len(lines))
				}
				for _, line := range lines {
					if n := ansi.StringWidth(line); n > width {
						t.Fatalf("%d×%d after %q: a line has %d columns: %q", width, height, key, n, line)
					}
				}
			}
		}
	}
}

func TestScreen_Keys_LeaveSortAndScroll(t *testing.T) {
	s := screen(20, 100, 10)
	for _, key := range []string{"q", "ctrl+c"} {
		if !s.Key(key) {
			t.Errorf("%s does not leave", key)
		}
	}
	if keys(s, "/", "q"); s.filter != "q" || !s.Key("ctrl+c") {
		t.Errorf("the filter is %q", s.filter)
	}
	s = keys(screen(20, 100, 10), "end")
	if last := s.shown[len(s.shown)-1]; !strings.Contains(s.String(), last.Node+" ") {
		t.Errorf("the last row is not shown:\n%s", s)
	}
	s.Height = 60
	if s.Key(""); s.top != 0 {
		t.Errorf("a larger terminal begins at row %d", s.top)
	}
	for key, want := range map[string]string{"h": "health", "m": "used", "f": "free", "u": "utilization", "n": "node"} {
		if s = keys(screen(20, 100, 10), "s", "s", key); s.Order != want {
			t.Errorf("%s sorts by %s", key, s.Order)
		}
	}
	if first := keys(s, "n", "s", "s", "s", "s").shown[0]; s.Order != "health" || first.Health != "lost" {
		t.Errorf("by %s, the first GPU is %s", s.Order, first.Condition())
	}
}

// TestScreen_TaintedGPU_CountsAsNotOk has a cordoned GPU, which no claim gets.
func TestScreen_TaintedGPU_CountsAsNotOk(t *testing.T) {
	s := &Screen{Width: 100, Height: 5}
	all, _ := fleet(1)
	all[0].GPUs[1].Taints = []resourceapi.DeviceTaint{{Key: "broken", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	s.Set(all, Use{}, noon)
	if got := s.String(); !strings.HasPrefix(got, "0 of 2 GPUs free, 1 not ok at 12:00:00") {
		t.Errorf("%s", got)
	}
}

func BenchmarkScreen_5000Nodes(b *testing.B) {
	all, use := fleet(5000)
	s := &Screen{Width: 120, Height: 50, Colours: true}
	for b.Loop() {
		s.Set(all, use, noon)
		_ = s.String()
	}
}
