// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/conformancetest"
	"gpu-dra-driver/internal/nvml/native"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/resourceslices"
)

var (
	driverRoot = flag.String("driver-root", "/", "where the NVIDIA driver's user space is")
	devRoot    = flag.String("dev-root", "/", "the directory that holds /dev")
	procRoot   = flag.String("proc-root", "/proc", "the machine's /proc")
	sysRoot    = flag.String("sys-root", "/sys", "the machine's /sys")
	record     = flag.String("record", "", "write what was read to this file, as a profile of the simulator")
	out        = flag.String("out", "", "write the facts to this directory")
)

// machine opens the driver. Without a GPU it logs that, and the tests check nothing. A GPU that NVML does not find is an
// error.
func machine(t *testing.T) (nvml.Library, gpu.Snapshot, bool) {
	t.Helper()
	lib := native.New(*driverRoot)
	i := inventory.New(inventory.Options{Library: lib, ProcRoot: *procRoot, SysRoot: *sysRoot, DevRoot: *devRoot})
	s, err := i.Scan(context.Background())
	signs, presentErr := roots{*driverRoot, *procRoot, *sysRoot}.present()
	none := errors.Is(err, inventory.ErrNoDriver) || err == nil && len(s.GPUs) == 0 && len(s.Problems) == 0
	switch {
	case presentErr != nil:
		t.Fatal(presentErr)
	case none && len(signs) > 0:
		t.Fatalf("NVML finds no GPU below %s (%v), but this machine has %s: install the driver, or name its directory with -args -driver-root DIR",
			*driverRoot, err, strings.Join(signs, ", "))
	case errors.Is(err, inventory.ErrNoDriver):
		t.Logf("no NVIDIA GPU here: %v", err)
		return nil, s, false
	case err != nil:
		t.Fatalf("there is an NVIDIA driver, and it cannot be read: %v", err)
	case len(s.GPUs) == 0 && len(s.Problems) == 0:
		t.Log("no NVIDIA GPU here: the driver lists none")
		return nil, s, false
	}
	return lib, s, true
}

func TestNVML_RealDriver_Conforms(t *testing.T) {
	lib, s, ok := machine(t)
	if !ok {
		return
	}
	conformancetest.Run(t, lib, conformancetest.Options{GPUs: len(s.GPUs) + len(s.Problems), DevRoot: *devRoot})
}

func TestInventory_RealGPUs_Read(t *testing.T) {
	lib, s, ok := machine(t)
	if !ok {
		return
	}
	fmt.Printf("driver %s, CUDA %d.%d\n", s.Driver.Version, s.Driver.CUDA.Major, s.Driver.CUDA.Minor)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PCI ADDRESS\tINDEX\tMINOR\tUUID\tPRODUCT\tARCH\tCC\tMEMORY MiB\tSMs\tPCIE ROOT\tNUMA\tMIG\tMPS\tADDRESSING")
	for _, g := range s.GPUs {
		numa := "-"
		if g.NUMANode != nil {
			numa = fmt.Sprint(*g.NUMANode)
		}
		mig := map[bool]string{false: "no", true: "off"}[g.MIG.Capable]
		if g.MIG.Enabled {
			mig = "on"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%d.%d\t%d\t%d\t%s\t%s\t%s\t%v\t%s\n", g.PCIAddress, g.Index, g.Minor, g.UUID, g.ProductName,
			g.Architecture, g.ComputeCapability.Major, g.ComputeCapability.Minor, g.MemoryBytes>>20, g.Multiprocessors, g.PCIeRoot, numa, mig, g.MPSCapable, g.AddressingMode)
		if g.Multiprocessors == 0 {
			t.Errorf("GPU %s: compute capability %+v has no entry in the table of cores, or its cores do not divide", g.PCIAddress, g.ComputeCapability)
		}
	}
	for _, p := range s.Problems {
		fmt.Fprintf(w, "%s\t%d\t\t%s\tPROBLEM: %s\n", p.PCIAddress, p.Index, p.UUID, p.Message)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if *record != "" {
		write(t, lib, s)
	}
}

// TestPartitions_RealGPUs_Described only reads: it switches no mode and creates no partition.
func TestPartitions_RealGPUs_Described(t *testing.T) {
	lib, s, ok := machine(t)
	if !ok {
		return
	}
	session, err := lib.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	for _, g := range s.GPUs {
		d, err := session.Device(g.Index)
		if err != nil {
			t.Errorf("GPU %s: %v", g.PCIAddress, err)
			continue
		}
		lines, err := describeMIG(d)
		for _, line := range lines {
			fmt.Printf("GPU %s: %s\n", g.PCIAddress, line)
		}
		if err != nil {
			t.Errorf("GPU %s: %v", g.PCIAddress, err)
		}
	}
}

func write(t *testing.T, lib nvml.Library, s gpu.Snapshot) {
	session, err := lib.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	p, err := Record(session, s, *sysRoot)
	if err != nil {
		t.Errorf("the recording is not complete: %v", err)
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*record, append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	path, _ := filepath.Abs(*record)
	fmt.Println("recorded to", path)
}

func TestSlices_RealGPUs_Published(t *testing.T) {
	_, s, ok := machine(t)
	if !ok {
		return
	}
	o := resourceslices.Options{Node: "here", Taints: true, SharedDevices: true}
	pool, warnings := resourceslices.Build(s, nil, o)
	for _, w := range warnings {
		fmt.Printf("warning: %s %s\n", w.Device, w.Message)
	}
	// An administrator's partitions are not errors of the hardware's values.
	uncut := s
	uncut.GPUs = slices.Clone(s.GPUs)
	for i := range uncut.GPUs {
		m := &uncut.GPUs[i].MIG
		m.Enabled, m.Pending, m.Partitions = false, false, nil
	}
	_, warnings = resourceslices.Build(uncut, nil, o)
	for _, w := range warnings {
		if w.State == "" {
			t.Errorf("a value of this hardware cannot be published: %s: %s", w.Device, w.Message)
		}
	}
	for _, slice := range pool.Slices {
		for _, d := range slice.Devices {
			fmt.Printf("%s: %d attributes, %d capacities\n", d.Name, len(d.Attributes), len(d.Capacity))
		}
	}
}

// TestContainerEdits_RealGPUs_NameDriverFiles reads the edits for a container. If the test runs in a container, some
// of the driver's files may be missing; then the error must name them.
func TestContainerEdits_RealGPUs_NameDriverFiles(t *testing.T) {
	_, s, ok := machine(t)
	if !ok {
		return
	}
	root := driverroot.New(driverroot.Options{DriverRoot: *driverRoot, DevRoot: *devRoot, ProcRoot: *procRoot, HookPath: "/usr/bin/nvidia-cdi-hook"})
	report := func(what string, nodes, mounts int, err error) {
		switch {
		case err == nil:
			fmt.Printf("%s: %d device nodes, %d mounts\n", what, nodes, mounts)
		case errors.Is(err, driverroot.ErrIncomplete), errors.Is(err, driverroot.ErrDriverNotLoaded), errors.Is(err, driverroot.ErrNoGPU):
			fmt.Printf("%s: %v\n", what, err)
		default:
			t.Errorf("%s: %v", what, err)
		}
	}
	e, err := root.Common(context.Background())
	report("every container", len(e.DeviceNodes), len(e.Mounts), err)
	for _, g := range s.GPUs {
		e, err := root.GPU(context.Background(), driverroot.Device{PCIAddress: g.PCIAddress, UUID: g.UUID, Minor: g.Minor})
		report("GPU "+g.PCIAddress, len(e.DeviceNodes), len(e.Mounts), err)
	}
}
