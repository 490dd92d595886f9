// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nccl writes the XML of NCCL_TOPO_FILE for some GPUs, their PCIe bridges and the NVLinks between them.
//
// NCCL reads missing attributes from sysfs and NVML (src/graph/xml.cc of NCCL), so the file holds only the known ones.
package nccl

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/gpu"
)

// Names and PCI classes of NCCL's format.
const (
	// unseenSwitch is the target of a link to a switch whose address NVML does not report.
	unseenSwitch = "fffffff:ffff:ff"
	classSwitch  = "0x068000"
	classGPU     = "0x030200"
	classBridge  = "0x060400"
)

type system struct {
	XMLName xml.Name `xml:"system"`
	Version int      `xml:"version,attr"`
	CPUs    []*cpu   `xml:"cpu"`
}

type cpu struct {
	NUMA int    `xml:"numaid,attr"`
	PCI  []*pci `xml:"pci"`
}

type pci struct {
	BusID string `xml:"busid,attr"`
	Class string `xml:"class,attr"`
	PCI   []*pci `xml:"pci"`
	GPU   *board `xml:"gpu"`
}

type board struct {
	SM    int    `xml:"sm,attr,omitempty"`
	Links []link `xml:"nvlink"`
}

type link struct {
	Target string `xml:"target,attr"`
	Count  int    `xml:"count,attr"`
	Class  string `xml:"tclass,attr"`
}

// File describes exactly these GPUs. Their order does not matter.
func File(gpus []gpu.GPU) string {
	gpus = slices.Clone(gpus)
	slices.SortFunc(gpus, func(a, b gpu.GPU) int {
		return cmp.Or(cmp.Compare(ptr.Deref(a.NUMANode, -1), ptr.Deref(b.NUMANode, -1)),
			cmp.Compare(a.PCIAddress, b.PCIAddress))
	})
	out := system{Version: 1}
	for _, g := range gpus {
		if n := len(out.CPUs); n == 0 || out.CPUs[n-1].NUMA != ptr.Deref(g.NUMANode, -1) {
			out.CPUs = append(out.CPUs, &cpu{NUMA: ptr.Deref(g.NUMANode, -1)})
		}
		level := &out.CPUs[len(out.CPUs)-1].PCI
		for _, bridge := range g.Bridges {
			level = &at(level, bridge, classBridge).PCI
		}
		at(level, g.PCIAddress, classGPU).GPU = &board{
			SM: g.ComputeCapability.Major*10 + g.ComputeCapability.Minor, Links: links(g, gpus),
		}
	}
	data, err := xml.MarshalIndent(out, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("strings and integers always encode: %v", err))
	}
	return string(data) + "\n"
}

// at returns the PCI node of a bus ID, and adds it if it is missing.
func at(level *[]*pci, busID, class string) *pci {
	for _, p := range *level {
		if p.BusID == busID {
			return p
		}
	}
	p := &pci{BusID: busID, Class: class}
	*level = append(*level, p)
	return p
}

func links(g gpu.GPU, gpus []gpu.GPU) []link {
	count := map[link]int{}
	for _, l := range g.Links {
		switch {
		case l.Peer == gpu.PeerSwitch:
			count[link{Target: cmp.Or(l.PeerAddress, unseenSwitch), Class: classSwitch}]++
		case l.Peer == gpu.PeerGPU && l.PeerAddress != g.PCIAddress &&
			slices.ContainsFunc(gpus, func(o gpu.GPU) bool { return o.PCIAddress == l.PeerAddress }):
			count[link{Target: l.PeerAddress, Class: classGPU}]++
		}
	}
	out := make([]link, 0, len(count))
	for l, n := range count {
		l.Count = n
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b link) int { return cmp.Compare(a.Target, b.Target) })
	return out
}
