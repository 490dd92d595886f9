// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/profiles"
)

// Record makes a profile of the simulator from a machine: its first model of GPU, and a slot for each GPU of that
// model. Unread facts are zero, except two facts that a profile must have; its sources name them.
func Record(session nvml.Session, snapshot gpu.Snapshot, sysRoot string) (profiles.Profile, error) {
	if len(snapshot.GPUs) == 0 {
		return profiles.Profile{}, fmt.Errorf("no GPU to record")
	}
	first := snapshot.GPUs[0]
	d, err := session.Device(first.Index)
	if err != nil {
		return profiles.Profile{}, fmt.Errorf("record GPU %s: %w", first.PCIAddress, err)
	}
	p := profiles.Profile{
		Name:        "recorded",
		Description: fmt.Sprintf("%d × %s, as recorded", len(snapshot.GPUs), first.ProductName),
		Driver: profiles.Driver{
			Version: snapshot.Driver.Version,
			// NVML's own version begins with the CUDA major version it was built for.
			NVMLVersion: fmt.Sprintf("%d.%s", snapshot.Driver.CUDA.Major, snapshot.Driver.Version),
			CUDA:        snapshot.Driver.CUDA.Major*1000 + snapshot.Driver.CUDA.Minor*10,
		},
		Sources: []profiles.Source{
			{Facts: "driver version, CUDA version, product name, brand, architecture, compute capability, PCI IDs, memory, cores, addressing mode, MIG capability", Source: "NVML of the recorded machine"},
			{Facts: "slots", Source: "sysfs of the recorded machine"},
			{Facts: "nvmlVersion", Source: "derived: CUDA major version and driver version"},
		},
	}
	p.Board, err = board(d, first)
	if err != nil {
		return profiles.Profile{}, fmt.Errorf("record GPU %s: %w", first.PCIAddress, err)
	}
	if p.Board.MIGCapable {
		if p.Board.MIG, err = recordMIG(d); err != nil {
			return profiles.Profile{}, fmt.Errorf("record GPU %s: %w", first.PCIAddress, err)
		}
		for _, m := range p.Board.MIG.GPUInstances {
			p.Board.MaxMIGDevices = max(p.Board.MaxMIGDevices, m.Instances)
		}
		p.Sources = append(p.Sources,
			profiles.Source{Facts: "MIG profiles and placements", Source: "NVML of the recorded machine"},
			profiles.Source{Facts: "maxMIGDevices", Source: "derived: as many as fit of the smallest MIG profile"},
			profiles.Source{Facts: "mig.resetFree", Source: "derived: architecture"},
			profiles.Source{Facts: "mig.gpuInstances.index", Source: "derived: slices and name, by nvml.h"})
	}
	for _, g := range snapshot.GPUs {
		if g.ProductName == first.ProductName {
			p.Slots = append(p.Slots, slot(g, len(p.Slots), sysRoot))
		}
	}
	recordLinks(&p, snapshot)
	return p, p.Validate()
}

// recordLinks records the GPUs' links that are up.
func recordLinks(p *profiles.Profile, snapshot gpu.Snapshot) {
	at := map[string]int{}
	for n, s := range p.Slots {
		at[s.Address] = n
	}
	between := map[[2]int]int{}
	for _, g := range snapshot.GPUs {
		a, known := at[g.PCIAddress]
		if !known {
			continue
		}
		p.Board.NVLinks = max(p.Board.NVLinks, len(g.Links))
		for _, l := range g.Links {
			p.Board.NVLinkVersion = max(p.Board.NVLinkVersion, l.Version)
			if b, ok := at[l.PeerAddress]; ok && l.Peer == gpu.PeerGPU && a < b {
				between[[2]int{a, b}]++
			}
		}
		p.Board.Fabric = p.Board.Fabric || g.Fabric.State != ""
		if g.Fabric.ClusterUUID != "" {
			p.Fabric = &profiles.Fabric{ClusterUUID: g.Fabric.ClusterUUID, CliqueID: g.Fabric.CliqueID}
		}
	}
	for a := range p.Slots {
		for b := range p.Slots {
			if n := between[[2]int{a, b}]; n > 0 {
				p.Wires = append(p.Wires, profiles.Wire{A: a, B: b, Links: n})
			}
		}
	}
	if p.Board.NVLinks > 0 {
		p.Sources = append(p.Sources, profiles.Source{Facts: "NVLinks, wires, fabric", Source: "NVML of the recorded machine, of links that were up"})
	}
}

func board(d nvml.Device, g gpu.GPU) (profiles.Board, error) {
	b := profiles.Board{
		ProductName: g.ProductName, ComputeMajor: g.ComputeCapability.Major, ComputeMinor: g.ComputeCapability.Minor,
		Multiprocessors: g.Multiprocessors, MIGCapable: g.MIG.Capable,
	}
	pci, err := d.PCI()
	if err != nil {
		return b, err
	}
	b.PCIDeviceID, b.PCISubsystemID = fmt.Sprintf("0x%08X", pci.DeviceID), fmt.Sprintf("0x%08X", pci.SubsystemID)
	memory, err := d.Memory()
	if err != nil {
		return b, err
	}
	b.MemoryMiB, b.ReservedMiB = memory.Total>>20, memory.Reserved>>20
	if b.Cores, err = d.Cores(); err != nil {
		return b, err
	}
	brand, err := d.Brand()
	if err != nil {
		return b, err
	}
	architecture, err := d.Architecture()
	if err != nil {
		return b, err
	}
	b.Brand, b.Architecture = int(brand), int(architecture)
	if mode, err := d.AddressingMode(); err == nil {
		b.AddressingMode, b.AddressingModeReported = int(mode), true
	}
	return b, nil
}

// slot reads the chain of bridges from the link that sysfs has for the GPU.
func slot(g gpu.GPU, n int, sysRoot string) profiles.Slot {
	s := profiles.Slot{Address: g.PCIAddress, NUMANode: -1, ModuleID: n + 1, Path: []string{g.PCIeRoot}}
	if g.NUMANode != nil {
		s.NUMANode = *g.NUMANode
	}
	target, err := os.Readlink(filepath.Join(sysRoot, "bus/pci/devices", g.PCIAddress))
	if _, chain, ok := strings.Cut(target, "devices/"); ok && err == nil {
		parts := strings.Split(chain, "/")
		s.Path = parts[:len(parts)-1]
	}
	return s
}
