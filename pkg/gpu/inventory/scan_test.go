// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

func scan(t *testing.T, i *Inventory) gpu.Snapshot {
	t.Helper()
	s, err := i.Scan(context.Background())
	if err != nil {
		t.Fatalf("Scan: %v", err)
	}
	return s
}

// bare is an Inventory of a machine without /proc, /sys and /dev.
func bare(t *testing.T, lib nvml.Library) *Inventory {
	none := t.TempDir()
	return New(Options{Library: lib, ProcRoot: none, SysRoot: none, DevRoot: none})
}

// TestScan_MemoryLimits_NeedDriverAndCgroups scans with and without cgroups, on drivers before and since CUDA 13.4, and while
// the query fails.
func TestScan_MemoryLimits_NeedDriverAndCgroups(t *testing.T) {
	cgroups := t.TempDir()
	for _, c := range []struct {
		cuda    int
		cgroups string
		code    nvml.Code
		want    bool
	}{
		{13040, cgroups, 0, true}, {13030, cgroups, 0, false}, {13040, "", 0, false}, {13040, filepath.Join(cgroups, "none"), 0, false},
		{13040, cgroups, nvml.FunctionNotFound, false}, {13040, cgroups, nvml.NoPermission, false}, {13040, cgroups, nvml.Unknown, false},
	} {
		machine := simtest.Machine(t, "hgx-h100")
		simtest.Change(t, machine, func(s *engine.State) { s.Profile.Driver.CUDA = c.cuda })
		var calls nvmltest.Calls
		if c.code != 0 {
			calls.Answer(c.code, func(_ int, call nvmltest.Call) bool { return call.Query == "nvmlDeviceGetMemoryLimits_v1" })
		}
		i := bare(t, nvmlfake.WithHook(machine, calls.Do))
		i.o.Cgroups = c.cgroups
		for _, g := range scan(t, i).GPUs {
			if g.MemoryLimits != c.want {
				t.Errorf("CUDA %d, cgroups %q, answer %d: %v", c.cuda, c.cgroups, c.code, g.MemoryLimits)
			}
		}
	}
}

func TestScan_EachProfile_HasNoProblems(t *testing.T) {
	for _, name := range profiles.Names() {
		t.Run(name, func(t *testing.T) {
			machine := simtest.Machine(t, name)
			p, err := profiles.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			s := scan(t, bare(t, nvmlfake.New(machine)))
			if len(s.GPUs) != len(p.Slots) || len(s.Problems) != 0 {
				t.Fatalf("%d GPUs and %d problems, want %d GPUs", len(s.GPUs), len(s.Problems), len(p.Slots))
			}
			want := gpu.Driver{Version: p.Driver.Version, CUDA: gpu.Version{Major: p.Driver.CUDA / 1000, Minor: p.Driver.CUDA % 1000 / 10}}
			if s.Driver != want {
				t.Errorf("driver %+v, want %+v", s.Driver, want)
			}
			g := s.GPUs[0]
			if g.ProductName != p.Board.ProductName || g.MemoryBytes != p.Board.MemoryMiB<<20 || g.MIG.Capable != p.Board.MIGCapable || g.MIG.Enabled {
				t.Errorf("GPU %+v does not match the board %+v", g, p.Board)
			}
			// The table of cores against what NVIDIA's data sheet of the board says.
			if g.Multiprocessors != p.Board.Multiprocessors {
				t.Errorf("%d multiprocessors, the profile says %d", g.Multiprocessors, p.Board.Multiprocessors)
			}
			if !g.MPSCapable {
				t.Errorf("not MPS capable, with compute capability %+v", g.ComputeCapability)
			}
		})
	}
}

func TestScan_OneGPU_ReadsEveryField(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	st, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	address := st.GPUs[0].Address
	sys := newSys(t, address, "pci0000:16", "1")
	s := scan(t, New(Options{Library: nvmlfake.New(machine), ProcRoot: t.TempDir(), SysRoot: sys, DevRoot: t.TempDir()}))
	one := 1
	want := gpu.GPU{
		PCIAddress: address, UUID: st.GPUs[0].UUID, Index: 0, Minor: 0,
		ProductName: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper", AddressingMode: s.GPUs[0].AddressingMode,
		ComputeCapability: gpu.Version{Major: 9}, PCIeRoot: "pci0000:16", NUMANode: &one,
		MemoryBytes: 81559 << 20, ReservedBytes: 454 << 20, Multiprocessors: 132, MIG: gpu.MIG{Capable: true}, MPSCapable: true,
	}
	want.MIG = s.GPUs[0].MIG // has a test of its own
	for i := range 18 {
		want.Links = append(want.Links, gpu.Link{Index: i, Version: 4, Peer: gpu.PeerSwitch})
	}
	want.Bridges, want.Fabric = []string{"0000:15:01.0"}, gpu.Fabric{State: gpu.FabricReady}
	if diff := cmp.Diff(want, s.GPUs[0]); diff != "" {
		t.Errorf("GPU (-want +got):\n%s", diff)
	}
	if g := s.GPUs[1]; g.PCIeRoot != "" || g.NUMANode != nil {
		t.Errorf("GPU %+v: sysfs knows nothing of it", g)
	}
}

// newSys is a /sys with one PCI device.
func newSys(t *testing.T, address, root, numa string) string {
	t.Helper()
	sys := t.TempDir()
	device := filepath.Join(sys, "devices", root, "0000:15:01.0", address)
	links := filepath.Join(sys, "bus/pci/devices")
	for _, dir := range []string{device, links} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(device, "numa_node"), []byte(numa+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join("../../../devices", root, "0000:15:01.0", address), filepath.Join(links, address)); err != nil {
		t.Fatal(err)
	}
	return sys
}

func TestScan_NoNUMANode_IsNil(t *testing.T) {
	machine := simtest.Machine(t, "t4-1")
	st, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	s := scan(t, New(Options{Library: nvmlfake.New(machine), SysRoot: newSys(t, st.GPUs[0].Address, "pci0000:00", "-1"), ProcRoot: t.TempDir(), DevRoot: t.TempDir()}))
	if g := s.GPUs[0]; g.NUMANode != nil || g.PCIeRoot != "pci0000:00" {
		t.Errorf("NUMA node %v, root %q; want none and pci0000:00", g.NUMANode, g.PCIeRoot)
	}
}

func TestScan_Unchanged_ReturnsEqualSnapshots(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	i := bare(t, nvmlfake.New(machine))
	first := scan(t, i)
	simtest.Change(t, machine, func(s *engine.State) {
		s.GPUs[2].Utilization, s.GPUs[2].TemperatureC = 97, 80
		if err := s.AddProcess(&s.GPUs[2], engine.Process{PID: 7, MemoryMiB: 4096}); err != nil {
			t.Error(err)
		}
	})
	if diff := cmp.Diff(first, scan(t, i)); diff != "" {
		t.Errorf("a busy GPU reads differently:\n%s", diff)
	}
}

// TestScan_GuestsAndIntegratedGPUs_ReadWhatTheyHave reads GPUs without an answer to some queries.
func TestScan_GuestsAndIntegratedGPUs_ReadWhatTheyHave(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *engine.State, g *engine.GPU)
		check  func(g gpu.GPU) bool
	}{
		"vGPU": {func(_ *engine.State, g *engine.GPU) { g.Virtualization = nvml.VirtualizationVGPU },
			func(g gpu.GPU) bool {
				return g.VGPU && cmp.Equal(g.MIG, gpu.MIG{}) && !g.MPSCapable && g.MemoryBytes > 0
			}},
		"passthrough": {func(_ *engine.State, g *engine.GPU) { g.Virtualization = nvml.VirtualizationPassthrough },
			func(g gpu.GPU) bool { return !g.VGPU && len(g.MIG.Profiles) > 0 && g.MPSCapable }},
		"unknown virtualization": {func(s *engine.State, g *engine.GPU) {
			s.Faults = []engine.Fault{{Query: "nvmlDeviceGetVirtualizationMode", GPU: g.UUID, Code: nvml.Unknown}}
		}, func(g gpu.GPU) bool { return !g.VGPU && len(g.MIG.Profiles) > 0 }},
		"memory of the CPU, as GB10": {func(s *engine.State, g *engine.GPU) {
			s.Faults = []engine.Fault{{Query: "nvmlDeviceGetMemoryInfo", GPU: g.UUID, Code: nvml.NotSupported}}
		}, func(g gpu.GPU) bool { return g.MemoryBytes == 0 && g.UUID != "" && g.Multiprocessors > 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			machine := simtest.Machine(t, "hgx-h100")
			simtest.Change(t, machine, func(s *engine.State) { c.change(s, &s.GPUs[3]) })
			s := scan(t, bare(t, nvmlfake.New(machine)))
			if len(s.GPUs) != 8 || len(s.Problems) != 0 || !c.check(s.GPUs[3]) {
				t.Errorf("%d GPUs, problems %v, %+v", len(s.GPUs), s.Problems, s.GPUs[3])
			}
		})
	}
}

func TestScan_OneGPUFails_ReadsOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		fault engine.Fault
		lost  bool
		says  string
	}{
		"lost at the handle":   {engine.Fault{Query: "nvmlDeviceGetHandleByIndex", Code: nvml.GPUIsLost}, true, "handle"},
		"lost mid-way":         {engine.Fault{Query: "nvmlDeviceGetNumGpuCores", Code: nvml.GPUIsLost}, true, "cores"},
		"no UUID":              {engine.Fault{Query: "nvmlDeviceGetUUID", Code: nvml.Unknown}, false, "UUID"},
		"WSL, without a minor": {engine.Fault{Query: "nvmlDeviceGetMinorNumber", Code: nvml.NotSupported}, false, "no device node /dev/nvidia<minor>, as in WSL"},
		"failing memory":       {engine.Fault{Query: "nvmlDeviceGetMemoryInfo", Code: nvml.Unknown}, false, "memory"},
		"needs a reset":        {engine.Fault{Query: "nvmlDeviceGetName", Code: nvml.ResetRequired}, false, "reset"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := simtest.Machine(t, "hgx-h100")
			var uuid string
			simtest.Change(t, machine, func(s *engine.State) {
				uuid = s.GPUs[3].UUID
				tc.fault.GPU = uuid
				s.Faults = []engine.Fault{tc.fault}
			})
			s := scan(t, bare(t, nvmlfake.New(machine)))
			if len(s.GPUs) != 7 || len(s.Problems) != 1 {
				t.Fatalf("%d GPUs, problems %+v; want 7 and one problem", len(s.GPUs), s.Problems)
			}
			p := s.Problems[0]
			if p.Index != 3 || p.Lost != tc.lost || !strings.Contains(p.Message, tc.says) {
				t.Errorf("problem %+v; want index 3, lost %v, a message with %q", p, tc.lost, tc.says)
			}
			for _, g := range s.GPUs {
				if g.UUID == uuid {
					t.Error("the failing GPU is listed")
				}
			}
		})
	}
}

// TestScan_AnyCallFails_WithdrawsGPUOnlyIfUnusable makes each call for one GPU fail with each code.
func TestScan_AnyCallFails_WithdrawsGPUOnlyIfUnusable(t *testing.T) {
	needed := []string{
		"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber",
		"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode",
	}
	for _, enabled := range []bool{false, true} {
		machine := simtest.MachineInMemory(t, "hgx-h100", 0)
		var uuid string
		simtest.Change(t, machine, func(s *engine.State) {
			s.GPUs[3].MIGEnabled, s.GPUs[3].MIGPending, uuid = enabled, enabled, s.GPUs[3].UUID
		})
		var calls nvmltest.Calls
		library := nvmlfake.WithHook(machine, calls.Do)
		calls.Answer(0, nvmltest.On(uuid))
		scan(t, bare(t, library))
		met := map[string]bool{}
		for _, c := range calls.Clear() {
			if c.GPU != uuid || met[c.Query] {
				continue
			}
			met[c.Query] = true
			for _, code := range nvmltest.Codes(t, c.Query) {
				calls.Answer(code, nvmltest.Of(c.Query, uuid))
				s := scan(t, bare(t, library)) // A first scan: later ones know the profiles.
				gone := code == nvml.GPUIsLost || code == nvml.ResetRequired
				unusable := gone || slices.Contains(needed, c.Query) && (!nvml.Unavailable(code) || slices.Contains(needed[:4], c.Query))
				if c.Query == "nvmlDeviceGetP2PStatus" {
					unusable = false // It asks about two GPUs.
				}
				if there := len(s.Problems) == 0; there == unusable || len(s.GPUs)+len(s.Problems) != 8 {
					t.Errorf("%s answers %d: %d GPUs, problems %+v", c.Query, code, len(s.GPUs), s.Problems)
				}
			}
		}
	}
}

func TestScan_QueryNotSupported_LeavesFieldEmpty(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	simtest.Change(t, machine, func(s *engine.State) {
		for _, q := range []string{"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMigMode", "nvmlDeviceGetAddressingMode", "nvmlDeviceGetBrand"} {
			s.Faults = append(s.Faults, engine.Fault{Query: q, Code: nvml.NotSupported})
		}
		s.Faults = append(s.Faults, engine.Fault{Query: "nvmlSystemGetCudaDriverVersion", Code: nvml.Unknown})
	})
	s := scan(t, bare(t, nvmlfake.New(machine)))
	if len(s.Problems) != 0 || len(s.GPUs) != 8 {
		t.Fatalf("%d GPUs, problems %+v; want 8 GPUs", len(s.GPUs), s.Problems)
	}
	g := s.GPUs[0]
	if g.MemoryBytes != 0 || g.Multiprocessors != 0 || g.MIG.Capable || g.AddressingMode != "" || g.Brand != "" || s.Driver.CUDA != (gpu.Version{}) {
		t.Errorf("invented values in %+v, %+v", s.Driver, g)
	}
}

func TestScan_LostGPU_AddressFromKernelList(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	st, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	simtest.Change(t, machine, func(s *engine.State) {
		for _, n := range []int{2, 5} {
			s.Faults = append(s.Faults, engine.Fault{Query: "*", GPU: s.GPUs[n].UUID, Code: nvml.GPUIsLost})
		}
	})
	proc := t.TempDir()
	for _, g := range st.GPUs {
		if err := os.MkdirAll(filepath.Join(proc, "driver/nvidia/gpus", g.Address), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	i := New(Options{Library: nvmlfake.New(machine), ProcRoot: proc, SysRoot: t.TempDir(), DevRoot: t.TempDir()})
	s := scan(t, i)
	if len(s.Problems) != 2 || s.Problems[0].PCIAddress != st.GPUs[2].Address || s.Problems[1].PCIAddress != st.GPUs[5].Address {
		t.Errorf("problems %+v, want them at %s and %s", s.Problems, st.GPUs[2].Address, st.GPUs[5].Address)
	}
	if err := os.Mkdir(filepath.Join(proc, "driver/nvidia/gpus/0000:ff:00.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if s := scan(t, i); s.Problems[0].PCIAddress != "" {
		t.Errorf("problems %+v: two GPUs cannot get one of three addresses", s.Problems)
	}
}

// TestScan_BoundToVFIO_IsProblem has a GPU for virtual machines, with its audio function, beside a GPU of the driver and
// another vendor's.
func TestScan_BoundToVFIO_IsProblem(t *testing.T) {
	sys := t.TempDir()
	for address, ids := range map[string][2]string{
		"0000:41:00.0": {"0x10de", "0x030200"}, "0000:41:00.1": {"0x10de", "0x040300"}, "0000:42:00.0": {"0x1002", "0x030000"},
	} {
		device := filepath.Join(sys, "bus/pci/devices", address)
		if err := errors.Join(os.MkdirAll(device, 0o755), os.MkdirAll(filepath.Join(sys, "bus/pci/drivers/vfio-pci", address), 0o755),
			os.WriteFile(filepath.Join(device, "vendor"), []byte(ids[0]+"\n"), 0o644), os.WriteFile(filepath.Join(device, "class"), []byte(ids[1]+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(sys, "bus/pci/drivers/vfio-pci/new_id"), nil, 0o200); err != nil {
		t.Fatal(err)
	}
	s := scan(t, New(Options{Library: nvmlfake.New(simtest.Machine(t, "t4-1")), ProcRoot: t.TempDir(), SysRoot: sys, DevRoot: t.TempDir()}))
	if len(s.GPUs) != 1 || len(s.Problems) != 1 || s.Problems[0].PCIAddress != "0000:41:00.0" || !strings.Contains(s.Problems[0].Message, "vfio-pci") {
		t.Errorf("%d GPUs, problems %+v", len(s.GPUs), s.Problems)
	}
}

func TestScan_InvalidIdentity_IsProblem(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(index int, a *answers)
		bad    []int
	}{
		"same address": {func(i int, a *answers) { a.pci = "00000000:0F:00.0" }, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		"two share a UUID": {func(i int, a *answers) {
			if i == 4 {
				a.uuid = "GPU-00000000-0000-0000-0000-000000000000"
			}
			if i == 6 {
				a.uuid = "GPU-00000000-0000-0000-0000-000000000000"
			}
		}, []int{4, 6}},
		"UUID of a partition": {func(i int, a *answers) {
			if i == 1 {
				a.uuid = "MIG-00000000-0000-0000-0000-000000000000"
			}
		}, []int{1}},
		"empty UUID": {func(i int, a *answers) {
			if i == 1 {
				a.uuid = ""
			}
		}, []int{1}},
		"address of a disk": {func(i int, a *answers) {
			if i == 0 {
				a.pci = "/dev/sda"
			}
		}, []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := scan(t, bare(t, altered{nvmlfake.New(simtest.Machine(t, "hgx-h100")), tc.change}))
			var got []int
			for _, p := range s.Problems {
				got = append(got, p.Index)
			}
			if !cmp.Equal(got, tc.bad) || len(s.GPUs) != 8-len(tc.bad) {
				t.Errorf("problems at %v and %d GPUs, want problems at %v: %+v", got, len(s.GPUs), tc.bad, s.Problems)
			}
		})
	}
}

func TestScan_NoDriver_ReturnsErrNoDriver(t *testing.T) {
	machine := simtest.Machine(t, "t4-1")
	simtest.Change(t, machine, func(s *engine.State) { s.DriverLoaded = false })
	s, err := bare(t, nvmlfake.New(machine)).Scan(context.Background())
	if !errors.Is(err, ErrNoDriver) || !errors.Is(err, nvml.DriverNotLoaded) || !cmp.Equal(s, gpu.Snapshot{}) {
		t.Errorf("Scan = %+v, %v; want the zero Snapshot and ErrNoDriver", s, err)
	}
}

func TestScan_AnyResult_ClosesSession(t *testing.T) {
	lib := &counting{Library: nvmlfake.New(simtest.Machine(t, "hgx-h100"))}
	i := bare(t, lib)
	scan(t, i)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := i.Scan(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Scan of a caller who left: %v", err)
	}
	if lib.opened.Load() != 2 || lib.closed.Load() != 2 {
		t.Errorf("%d sessions opened, %d closed; want 2 of each", lib.opened.Load(), lib.closed.Load())
	}
}

func TestScan_VGPUGuest_IsNotMPSCapable(t *testing.T) {
	lib := altered{nvmlfake.New(simtest.Machine(t, "t4-1")), func(_ int, a *answers) { a.brand = nvml.BrandVCS }}
	if g := scan(t, bare(t, lib)).GPUs[0]; g.MPSCapable || g.Brand != "NvidiaVCS" {
		t.Errorf("GPU %+v: MPS capable in a virtual machine", g)
	}
}

func TestMultiprocessors_UnknownCapability_IsZero(t *testing.T) {
	for _, tc := range []struct{ cores, major, minor, want int }{
		{16896, 9, 0, 132}, {16896, 99, 0, 0}, {16897, 9, 0, 0}, {-128, 9, 0, 0}, {2560, 7, 5, 40}, {6912, 8, 0, 108},
	} {
		if got := multiprocessors(tc.cores, gpu.Version{Major: tc.major, Minor: tc.minor}); got != tc.want {
			t.Errorf("%d cores of %d.%d are %d multiprocessors, want %d", tc.cores, tc.major, tc.minor, got, tc.want)
		}
	}
}

func TestScan_Sysfs_ReadsRootAndNUMANode(t *testing.T) {
	root := simtest.Root(t, "hgx-h100", nil)
	i := New(Options{Library: nvmlfake.NewRoot(root.Path), ProcRoot: root.ProcRoot, SysRoot: root.SysRoot, DevRoot: root.Path})
	s := scan(t, i)
	for _, g := range s.GPUs {
		if g.PCIeRoot == "" || g.NUMANode == nil {
			t.Errorf("GPU %s has root %q and NUMA node %v, want both", g.PCIAddress, g.PCIeRoot, g.NUMANode)
		}
		if _, err := os.Stat(filepath.Join(root.Path, "dev", fmt.Sprintf("nvidia%d", g.Minor))); err != nil {
			t.Error(err)
		}
	}
}

func TestScan_ModeUnchanged_ReadsProfilesOnce(t *testing.T) {
	machine := simtest.MachineInMemory(t, "hgx-h100", 0)
	var calls nvmltest.Calls
	i := bare(t, nvmlfake.WithHook(machine, calls.Do))
	queries := func() (n int) {
		calls.Answer(0, nvmltest.Of("", ""))
		scan(t, i)
		for _, c := range calls.Clear() {
			if c.Query == "nvmlDeviceGetGpuInstanceProfileInfoV" {
				n++
			}
		}
		return n
	}
	first, again := queries(), queries()
	simtest.Change(t, machine, func(s *engine.State) { s.GPUs[3].MIGEnabled, s.GPUs[3].MIGPending = true, true })
	if switched := queries(); first == 0 || again != 0 || switched == 0 || switched > first/4 {
		t.Errorf("%d queries of profiles, then %d, then %d after a switch of one GPU", first, again, switched)
	}
}
