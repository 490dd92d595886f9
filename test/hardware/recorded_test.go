// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/recordedtest"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

// model returns the recorded profile, and the simulator's profile of the same model.
func model(t *testing.T, r recordedtest.Recording) (recorded, own profiles.Profile) {
	t.Helper()
	recorded, err := profiles.Decode([]byte(r.Text(t, "profile.json")))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range profiles.Names() {
		if own, err = profiles.Load(name); err == nil && own.Board.ProductName == recorded.Board.ProductName {
			if reason, ok := otherMemory[r.Name]; ok {
				takeMemory(t, &own.Board, recorded.Board, reason)
			}
			return recorded, own
		}
	}
	t.Fatalf("no profile of the simulator has a %s", recorded.Board.ProductName)
	return recorded, own
}

// otherMemory lists the recordings whose driver reserves other memory than the driver of the simulator's sources, with the reasons.
var otherMemory = map[string]string{
	"h100-580.159.04": "the profile has the memory of driver 565.57.01; drivers reserve 328 to 551 MiB",
}

// takeMemory gives a board the recorded memory that depends on the driver.
func takeMemory(t *testing.T, to *profiles.Board, from profiles.Board, reason string) {
	t.Helper()
	mig := *to.MIG
	mig.GPUInstances = slices.Clone(mig.GPUInstances)
	equal := to.ReservedMiB == from.ReservedMiB
	to.MIG, to.ReservedMiB = &mig, from.ReservedMiB
	for i, recorded := range from.MIG.GPUInstances {
		equal = equal && mig.GPUInstances[i].MemoryMiB == recorded.MemoryMiB
		mig.GPUInstances[i].MemoryMiB = recorded.MemoryMiB
	}
	if equal {
		t.Errorf("both have the same memory: remove the difference (%s)", reason)
	}
}

// measured matches the answers that differ between two readings of one GPU, or between two boards of one model.
var measured = regexp.MustCompile(`^(module|clocks-event-reasons|memory|memory\.v1|` +
	`field\.(78|80|81|82|83|94|169|17[3-9]|18[0-3]|185|186|191|197|198))$`)

// twin simulates the recorded machine: its GPU, its slot, its links.
func twin(t *testing.T, r recordedtest.Recording) *simtest.DriverRoot {
	t.Helper()
	recorded, own := model(t, r)
	board := own.Board
	board.NVLinks, board.NVLinkVersion, board.Switches, board.Fabric = recorded.Board.NVLinks, recorded.Board.NVLinkVersion, 0, recorded.Board.Fabric
	machine := recorded
	machine.Board, machine.Driver = board, own.Driver
	now, err := engine.New(machine, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	root := simtest.Root(t, own.Name, nil)
	simtest.Change(t, root, func(s *engine.State) {
		now.Generation = s.Generation
		*s = *now
	})
	return root
}

// TestRecorded_Slices_EqualTheSimulators counts what the driver publishes of the simulated machine. The log has the counts of
// the recorded one.
func TestRecorded_Slices_EqualTheSimulators(t *testing.T) {
	line := regexp.MustCompile(`(?m)^(\S+): (\d+) attributes, (\d+) capacities$`)
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		root := twin(t, r)
		i := inventory.New(inventory.Options{Library: nvmlfake.NewRoot(root.Path), ProcRoot: root.ProcRoot, SysRoot: root.SysRoot, DevRoot: root.Path})
		s, err := i.Scan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.Machine = "" // The recorded virtual machine has no DMI.
		pool, _ := resourceslices.Build(s, nil, resourceslices.Options{Node: "here", Taints: true, SharedDevices: true})
		var got, want []string
		for _, slice := range pool.Slices {
			for _, d := range slice.Devices {
				if strings.HasPrefix(d.Name, "gpu-") && r.Name == "h200-580.159.04" {
					delete(d.Attributes, "mode") // The release of that recording published it of monitor devices alone.
				}
				got = append(got, fmt.Sprintf("%s: %d attributes, %d capacities", d.Name, len(d.Attributes), len(d.Capacity)))
			}
		}
		want = append(want, line.FindAllString(r.Text(t, "log.txt"), -1)...)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("devices (-recorded +simulated):\n%s", diff)
		}
	})
}

// TestRecorded_Answers_EqualTheSimulators asks the simulator's NVML what was asked on the recorded machine.
func TestRecorded_Answers_EqualTheSimulators(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		root := twin(t, r)
		root.Use(t)
		lib := gonvml.New(gonvml.WithLibraryPath(root.Library))
		if ret := lib.Init(); ret != gonvml.SUCCESS {
			t.Fatal(ret)
		}
		t.Cleanup(func() { _ = lib.Shutdown() })
		d, ret := lib.DeviceGetHandleByIndex(0)
		if ret != gonvml.SUCCESS {
			t.Fatal(ret)
		}
		got := answers(lib, d)
		want := map[string]any{}
		for name, value := range r.Facts(t) {
			if name, ok := strings.CutPrefix(name, "nvml."); ok && name != "symbols" {
				want[name] = value
			}
		}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			g, w := text(got[name]), text(want[name])
			if measured.MatchString(name) {
				// The kind of the answer is not measured.
				g, w = kind(g), kind(w)
			}
			switch reason, ok := differences[name]; {
			case g == w && ok:
				t.Errorf("%s: both answer %s: remove the difference (%s)", name, text(want[name]), reason)
			case g != w && !ok:
				t.Errorf("%s: the simulator answers %s, and the GPU answered %s", name, text(got[name]), text(want[name]))
			}
		}
	})
}

// text returns an answer in the form of facts.json.
func text(answer any) string {
	b, err := json.Marshal(answer)
	if err != nil {
		return fmt.Sprint(answer)
	}
	return string(b)
}

// kind returns the code of an answer, or the type of a field, or "value".
func kind(answer string) string {
	if m := regexp.MustCompile(`^"(code \d+|type \d+)`).FindStringSubmatch(answer); m != nil {
		return m[1]
	}
	return "value"
}

// differences lists the answers in which the simulator is another one, with the reasons.
var differences = map[string]string{
	"virtualization": "the simulated machine is not virtual",
	"field.193":      "limits of temperature below the shutdown, which neither the driver nor DCGM's exporter reads",
	"field.194":      "as field 193",
	"field.195":      "as field 193",
	"field.196":      "as field 193",
	"field.228":      "nvml.h has no name for it",
	"field.229":      "nvml.h has no name for it",
}

// TestRecorded_Profile_EqualsTheSimulators compares the facts of a board that NVML reports.
func TestRecorded_Profile_EqualsTheSimulators(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		recorded, own := model(t, r)
		b := own.Board
		// Boards of one model have several part numbers, each with its subsystem ID.
		if part := r.SMI(t, "Board Part Number"); strings.HasPrefix(part, b.PartNumber) {
			if recorded.Board.PCISubsystemID != b.PCISubsystemID {
				t.Errorf("part %s has the subsystem ID %s, and the simulator's %s", part, recorded.Board.PCISubsystemID, b.PCISubsystemID)
			}
		}
		want := profiles.Board{
			ProductName: b.ProductName, Brand: b.Brand, Architecture: b.Architecture, ComputeMajor: b.ComputeMajor, ComputeMinor: b.ComputeMinor,
			PCIDeviceID: b.PCIDeviceID, PCISubsystemID: recorded.Board.PCISubsystemID, MemoryMiB: b.MemoryMiB, ReservedMiB: b.ReservedMiB,
			Cores: b.Cores, Multiprocessors: b.Multiprocessors, AddressingMode: b.AddressingMode, AddressingModeReported: b.AddressingModeReported,
			MIGCapable: b.MIGCapable, MaxMIGDevices: b.MaxMIGDevices, MIG: b.MIG,
			// A machine can have fewer links than the board.
			NVLinks: recorded.Board.NVLinks, NVLinkVersion: recorded.Board.NVLinkVersion, Fabric: recorded.Board.Fabric,
		}
		if diff := cmp.Diff(want, recorded.Board); diff != "" {
			t.Errorf("board (-simulator +recorded):\n%s", diff)
		}
		if recorded.Board.NVLinks > b.NVLinks {
			t.Errorf("the GPU has %d NVLinks, and the simulator's %d", recorded.Board.NVLinks, b.NVLinks)
		}
		module, err := strconv.Atoi(r.SMI(t, "Module Id"))
		if err != nil || !slices.ContainsFunc(own.Slots, func(s profiles.Slot) bool { return s.ModuleID == module }) {
			t.Errorf("no slot of the simulator has the module ID %d (%v)", module, err)
		}
		for key, want := range map[string]string{
			"Max Power Limit": fmt.Sprintf("%d.00 W", b.Power.Max), "Min Power Limit": fmt.Sprintf("%d.00 W", b.Power.Min),
			"Default Power Limit": fmt.Sprintf("%d.00 W", b.Power.Default),
		} {
			if got := r.SMI(t, key); got != want {
				t.Errorf("%s is %s, and the simulator's %s", key, got, want)
			}
		}
	})
}

// TestRecorded_Tables_EqualNVML compares the tables of nvidia-smi with the recorded profile.
func TestRecorded_Tables_EqualNVML(t *testing.T) {
	profile := regexp.MustCompile(`MIG (\S+) +(\d+) +\d+/(\d+) +([\d.]+) +No +(\d+) +(\d+) +(\d+) +\|\n\|[ |]+(\d+) +(\d+) +(\d+) +\|`)
	placement := regexp.MustCompile(`(?m)^GPU +0 Profile ID +(\d+) Placements?: ?\{([\d,]+)\}:(\d+)$`)
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		recorded, _ := model(t, r)
		if recorded.Board.MIG == nil {
			return
		}
		var rows, lines []string
		for _, m := range profile.FindAllStringSubmatch(r.Text(t, "nvidia-smi-mig-lgip.txt"), -1) {
			rows = append(rows, strings.Join(m[1:], " "))
		}
		placements := strings.ReplaceAll(r.Text(t, "nvidia-smi-mig-lgipp.txt"), "Placement : ", "Placements: ")
		for _, m := range placement.FindAllStringSubmatch(placements, -1) {
			lines = append(lines, strings.Join(m[1:], " "))
		}
		for _, p := range recorded.Board.MIG.GPUInstances {
			e := p.Engines
			row := fmt.Sprintf("%s %d %d %.2f %d %d %d %d %d %d", p.Name, p.ID, p.Instances, float64(p.MemoryMiB)/1024, p.Multiprocessors,
				e.Decoder, e.Encoder, e.Copy, e.JPEG, e.OFA)
			if !slices.Contains(rows, row) {
				t.Errorf("nvidia-smi mig -lgip has no profile %q in %q", row, rows)
			}
			line := fmt.Sprintf("%d %s %d", p.ID, strings.ReplaceAll(strings.Trim(fmt.Sprint(p.Starts), "[]"), " ", ","), p.Size)
			if !slices.Contains(lines, line) {
				t.Errorf("nvidia-smi mig -lgipp has no placements %q in %q", line, lines)
			}
		}
		if n := len(recorded.Board.MIG.GPUInstances); len(rows) != n || len(lines) != n {
			t.Errorf("nvidia-smi has %d profiles and %d lines of placements, want %d", len(rows), len(lines), n)
		}
	})
}

// TestRecorded_SMI_PrintsAsTheSimulators runs the simulator's nvidia-smi.
func TestRecorded_SMI_PrintsAsTheSimulators(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		_, own := model(t, r)
		root := simtest.Root(t, own.Name, func(o *driverroot.Options) { o.GPUs = 1 })
		for file, c := range map[string]struct {
			args string
			exit int
		}{
			"nvidia-smi-L.txt":                      {"-L", 0},
			"nvidia-smi-compute-policy-l.txt":       {"compute-policy -l", 0},
			"nvidia-smi-compute-policy-refused.txt": {"compute-policy --set-timeslice=default", 2},
		} {
			if !r.Has(file) {
				continue
			}
			cmd := exec.Command(filepath.Join(root.Path, "usr/bin/nvidia-smi"), strings.Fields(c.args)...)
			cmd.Env = append(os.Environ(), "GPUSIM_ROOT="+root.Path)
			out, err := cmd.CombinedOutput()
			got := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).ReplaceAllString(string(out), "00000000-0000-0000-0000-000000000000")
			if exit := cmd.ProcessState.ExitCode(); exit != c.exit || got != r.Text(t, file) {
				t.Errorf("nvidia-smi %s exits with %d (%v), want %d, and prints (-recorded +simulator):\n%s", c.args, exit, err, c.exit, cmp.Diff(r.Text(t, file), got))
			}
		}
	})
}
