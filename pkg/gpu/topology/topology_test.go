// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/pkg/gpu"
)

func address(n int) string { return fmt.Sprintf("0000:%02x:00.0", 0x10+n) }

// machine has GPUs on two NUMA nodes.
func machine(n int) []gpu.GPU {
	out := make([]gpu.GPU, n)
	for i := range out {
		node := 2 * i / max(n, 1)
		out[i] = gpu.GPU{PCIAddress: address(i), NUMANode: &node}
	}
	return out
}

// wire puts so many links between two GPUs.
func wire(gpus []gpu.GPU, a, b, links int) {
	for range links {
		gpus[a].Links = append(gpus[a].Links, gpu.Link{Peer: gpu.PeerGPU, PeerAddress: address(b)})
		gpus[b].Links = append(gpus[b].Links, gpu.Link{Peer: gpu.PeerGPU, PeerAddress: address(a)})
	}
}

// hgx is a board with switches.
func hgx(n int) []gpu.GPU {
	gpus := machine(n)
	for i := range gpus {
		for l := range 18 {
			gpus[i].Links = append(gpus[i].Links, gpu.Link{Index: l, Peer: gpu.PeerSwitch})
		}
	}
	return gpus
}

// cubeMesh is a DGX-1 with V100, as `nvidia-smi topo` shows it.
func cubeMesh() []gpu.GPU {
	gpus := machine(8)
	for _, l := range [][3]int{
		{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1}, {1, 5, 2}, {2, 3, 2}, {2, 6, 1}, {3, 7, 1},
		{4, 5, 1}, {4, 6, 1}, {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2},
	} {
		wire(gpus, l[0], l[1], l[2])
	}
	return gpus
}

// show is a short form: "0-7 switched: 01 23 45 67 0123 4567 01234567".
func show(islands []Island) string {
	digit := func(a string) string {
		var n int
		_, _ = fmt.Sscanf(a, "0000:%x:00.0", &n)
		return fmt.Sprintf("%x", n-0x10)
	}
	word := func(members []string) string {
		var b strings.Builder
		for _, m := range members {
			b.WriteString(digit(m))
		}
		return b.String()
	}
	var out []string
	for _, i := range islands {
		text := word(i.Members)
		if i.Switched {
			text += " switched"
		}
		for _, g := range i.Groups {
			text += " " + word(g.Members)
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

func TestFind_Boards_FindsIslandsAndGroups(t *testing.T) {
	bridges := machine(4)
	wire(bridges, 0, 2, 12)
	wire(bridges, 1, 3, 12)
	chain := machine(3)
	wire(chain, 0, 1, 1)
	wire(chain, 1, 2, 2)
	for name, c := range map[string]struct {
		gpus []gpu.GPU
		want string
	}{
		"an HGX board":         {hgx(8), "01234567 switched 01 23 45 67 0123 4567 01234567"},
		"four of it":           {hgx(4), "0123 switched 01 23 0123"},
		"six of it":            {hgx(6), "012345 switched 01 23 45 0123"},
		"PCIe boards":          {machine(4), ""},
		"nothing":              {nil, ""},
		"a hybrid cube mesh":   {cubeMesh(), "03124756 03 12 47 56 0312 4756"},
		"bridged pairs":        {bridges, "02 02; 13 13"},
		"a chain":              {chain, "120 12"},
		"a GPU without switch": {append(hgx(2), machine(3)[2]), "01 switched 01"},
		"sixteen on switches":  {hgx(16)[:16], "0123456789abcdef switched 01 23 45 67 89 ab cd ef 0123 4567 89ab cdef 01234567 89abcdef 0123456789abcdef"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := show(Find(c.gpus)); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			// The order in which NVML lists them says nothing.
			shuffled := slices.Clone(c.gpus)
			rand.New(rand.NewPCG(seedtest.Base(t), 2)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			if diff := cmp.Diff(Find(c.gpus), Find(shuffled)); diff != "" {
				t.Errorf("in another order (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFind_LinksUncertain_AreIgnored(t *testing.T) {
	oneSided := machine(2)
	oneSided[0].Links = []gpu.Link{{Peer: gpu.PeerGPU, PeerAddress: address(1)}}
	toItself := machine(2)
	toItself[0].Links = []gpu.Link{{Peer: gpu.PeerGPU, PeerAddress: address(0)}}
	nowhere := machine(2)
	nowhere[0].Links = []gpu.Link{{Peer: gpu.PeerGPU, PeerAddress: "0000:ff:00.0"}, {Peer: gpu.PeerOther, PeerAddress: address(1)}}
	for name, gpus := range map[string][]gpu.GPU{"one end alone reports it": oneSided, "to itself": toItself, "to nowhere": nowhere} {
		if got := show(Find(gpus)); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	unequal := machine(2)
	wire(unequal, 0, 1, 3)
	unequal[1].Links = unequal[1].Links[:2]
	if got := Find(unequal); got[0].Groups[0].Links != 2 {
		t.Errorf("three links of which one end knows two: %+v", got)
	}
	lost := hgx(8)
	lost[3].Links = nil
	if got, want := show(Find(lost)), "0124567 switched 01 45 67 4567"; got != want {
		t.Errorf("one GPU's links are down: %q, want %q", got, want)
	}
}

func TestFind_SwitchLinksFail_DropsTheirGroups(t *testing.T) {
	for name, c := range map[string]struct {
		fail func([]gpu.GPU)
		want string
	}{
		"one link of one GPU":        {func(g []gpu.GPU) { g[5].Links = g[5].Links[1:] }, "0123467 switched 01 23 67 0123"},
		"one link of each":           {func(g []gpu.GPU) { each(g, func(g *gpu.GPU) { g.Links = g.Links[1:] }) }, "01234567 switched 01 23 45 67 0123 4567 01234567"},
		"a GPU is not registered":    {func(g []gpu.GPU) { g[0].Fabric.State = gpu.FabricPending }, "1234567 switched 23 45 67 4567"},
		"a GPU was refused":          {func(g []gpu.GPU) { g[7].Fabric.State = gpu.FabricFailed }, "0123456 switched 01 23 45 0123"},
		"none is registered":         {func(g []gpu.GPU) { each(g, func(g *gpu.GPU) { g.Fabric.State = gpu.FabricPending }) }, ""},
		"all are":                    {func(g []gpu.GPU) { each(g, func(g *gpu.GPU) { g.Fabric.State = gpu.FabricReady }) }, "01234567 switched 01 23 45 67 0123 4567 01234567"},
		"two are not peers":          {func(g []gpu.GPU) { g[2].Unreachable = []string{address(3)} }, "01234567 switched 01 45 67 4567"},
		"another model is among it":  {func(g []gpu.GPU) { g[0].ProductName, g[0].Links = "display", nil }, "1234567 switched 12 34 56 1234"},
		"a display adapter comes up": {func(g []gpu.GPU) { g[7].ProductName, g[7].Links = "display", nil }, "0123456 switched 01 23 45 0123"},
	} {
		gpus := hgx(8)
		c.fail(gpus)
		if got := show(Find(gpus)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	mesh := machine(2)
	wire(mesh, 0, 1, 2)
	mesh[1].Unreachable = []string{address(0)}
	if got := show(Find(mesh)); got != "" {
		t.Errorf("bridged and no peers: %q", got)
	}
}

func each(gpus []gpu.GPU, do func(*gpu.GPU)) {
	for i := range gpus {
		do(&gpus[i])
	}
}

func TestAt_GroupNames_FindGroups(t *testing.T) {
	islands := Find(cubeMesh())
	if g, ok := At(islands, 4, address(4)); !ok || show([]Island{{Members: g.Members}}) != "4756" {
		t.Errorf("%+v, %v", g, ok)
	}
	for _, none := range []struct {
		size  int
		first string
	}{{4, address(7)}, {3, address(4)}, {8, address(0)}} {
		if g, ok := At(islands, none.size, none.first); ok {
			t.Errorf("%+v: %+v", none, g)
		}
	}
	got := Sort(append(cubeMesh(), gpu.GPU{PCIAddress: "0000:01:00.0"}), []string{"0000:01:00.0", address(5), address(0), address(3), address(6), address(4)})
	if diff := cmp.Diff([]string{address(0), address(3), address(4), address(5), address(6), "0000:01:00.0"}, got); diff != "" {
		t.Errorf("link order (-want +got):\n%s", diff)
	}
}

// FuzzFind has any interconnect: no GPU is in two groups of a size, and each group is a clique inside one of the next size.
func FuzzFind(f *testing.F) {
	f.Add([]byte{0, 1, 1, 0, 2, 3, 3, 2})
	f.Add([]byte{8, 9, 10, 11, 0, 1})
	f.Fuzz(func(t *testing.T, wires []byte) {
		gpus := machine(9)
		for i := 0; i+1 < len(wires) && i < 128; i += 2 {
			a, b := int(wires[i])%9, int(wires[i+1])%10
			l := gpu.Link{Peer: gpu.PeerGPU, PeerAddress: address(b)}
			if b == 9 {
				l.Peer = gpu.PeerSwitch
			}
			gpus[a].Links = append(gpus[a].Links, l)
		}
		w := newInterconnect(gpus)
		seen := map[string]bool{}
		for _, island := range Find(gpus) {
			for _, m := range island.Members {
				if seen[m] {
					t.Fatalf("%s is in two islands", m)
				}
				seen[m] = true
			}
			sizes := map[int]map[string]bool{}
			for n, g := range island.Groups {
				size := len(g.Members)
				if sizes[size] == nil {
					sizes[size] = map[string]bool{}
				}
				for i, m := range g.Members {
					if sizes[size][m] || !slices.Contains(island.Members, m) {
						t.Fatalf("%s is in two groups of %d, or no member: %+v", m, size, island)
					}
					sizes[size][m] = true
					for _, o := range g.Members[:i] {
						if !w.connected(m, o) {
							t.Fatalf("%s and %s are in a group and not connected", m, o)
						}
					}
				}
				for _, bigger := range island.Groups[n+1:] {
					in := 0
					for _, m := range g.Members {
						if slices.Contains(bigger.Members, m) {
							in++
						}
					}
					if in != 0 && in != size && len(bigger.Members) > size {
						t.Fatalf("%+v is half in %+v", g, bigger)
					}
				}
			}
		}
	})
}
