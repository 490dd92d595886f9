// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"encoding/binary"
	"fmt"
	"path"
	"strings"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
)

func proc(s *engine.State) []Entry {
	entries := []Entry{file(BootIDFile, s.BootID+"\n"), file("proc/devices", charDevices(s))}
	if !s.DriverLoaded {
		return entries
	}
	b, version := s.Profile.Board, s.Profile.Driver.Version
	const dir = "proc/driver/nvidia"
	entries = append(entries,
		file(dir+"/version", fmt.Sprintf("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (simulated)\nGCC version:  simulated\n", version)),
		file("proc/modules", modules(s)),
		file(dir+"/params", "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nRmLogonRC: 1\nEnableMSI: 1\n"),
		Entry{Path: dir + "/gpus", Kind: Dir},
	)
	if b.MIGCapable {
		entries = append(entries, file("proc/driver/nvidia-caps/mig-minors", migMinors(s)))
	}
	for _, i := range s.OnBus() {
		g := &s.GPUs[i]
		entries = append(entries, file(path.Join(dir, "gpus", g.Address, "information"), fmt.Sprintf(
			"Model: \t\t %s\nIRQ:   \t\t %d\nGPU UUID: \t %s\nVideo BIOS: \t %s\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"+
				"DMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No\n",
			b.ProductName, 200+i, g.UUID, strings.ToLower(b.VBIOS), g.Address, g.Minor, version)))
	}
	return entries
}

func modules(s *engine.State) string {
	if s.UVMMissing {
		return "nvidia 2 0 - Live 0x0\n"
	}
	return "nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0\n"
}

func charDevices(s *engine.State) string {
	t := "Character devices:\n  1 mem\n  5 /dev/tty\n 10 misc\n"
	if s.DriverLoaded {
		t += fmt.Sprintf("%3d nvidia\n%3d nvidia-modeset\n%3d nvidiactl\n%3d nvidia-caps\n", majorGPU, majorGPU, majorGPU, majorCaps)
		if !s.UVMMissing {
			t += fmt.Sprintf("%3d nvidia-uvm\n", majorUVM)
		}
		if s.Profile.Board.Switches > 0 {
			t += fmt.Sprintf("%3d nvidia-nvswitch\n", majorSwitch)
		}
	}
	return t + "\nBlock devices:\n  8 sd\n"
}

func sysfs(s *engine.State) []Entry {
	b := s.Profile.Board
	entries := []Entry{{Path: "sys/bus/pci/devices", Kind: Dir},
		// With a character that programs remove from labels.
		file("sys/class/dmi/id/product_name", "Simulator ("+s.Profile.Name+")\n")}
	if s.DriverLoaded {
		entries = append(entries, Entry{Path: "sys/bus/pci/drivers/nvidia", Kind: Dir},
			file("sys/module/nvidia/version", s.Profile.Driver.Version+"\n"), file("sys/module/nvidia/initstate", "live\n"))
	}
	nodes := 0
	for _, slot := range s.Profile.Slots {
		nodes = max(nodes, slot.NUMANode+1)
	}
	for _, i := range s.OnBus() {
		g := &s.GPUs[i]
		slot := s.Slot(g)
		dir := path.Join(append([]string{"sys/devices"}, append(slot.Path, g.Address)...)...)
		entries = append(entries,
			file(dir+"/vendor", "0x10de\n"), file(dir+"/device", fmt.Sprintf("0x%04x\n", b.DeviceID()>>16)),
			file(dir+"/subsystem_vendor", fmt.Sprintf("0x%04x\n", b.SubsystemID()&0xffff)),
			file(dir+"/subsystem_device", fmt.Sprintf("0x%04x\n", b.SubsystemID()>>16)),
			file(dir+"/class", "0x030200\n"), file(dir+"/numa_node", fmt.Sprintf("%d\n", slot.NUMANode)),
			file(dir+"/config", string(configSpace(b))), file(dir+"/resource", fmt.Sprintf("0x%016x 0x%016x 0x0000000000040200\n", bar0(i), bar0(i)+1<<24-1)),
			file(dir+"/local_cpulist", cpuList(slot.NUMANode)+"\n"),
			file(dir+"/current_link_width", fmt.Sprintf("%d\n", max(b.PCIeWidth-g.LostLanes, 0))),
			file(dir+"/max_link_width", fmt.Sprintf("%d\n", b.PCIeWidth)),
			link("sys/bus/pci/devices/"+g.Address, dir),
		)
		if s.DriverLoaded {
			entries = append(entries, link(dir+"/driver", "sys/bus/pci/drivers/nvidia"), link("sys/bus/pci/drivers/nvidia/"+g.Address, dir))
		}
	}
	for n := range nodes {
		dir := fmt.Sprintf("sys/devices/system/node/node%d", n)
		entries = append(entries, file(dir+"/distance", distances(n, nodes)+"\n"), file(dir+"/cpulist", cpuList(n)+"\n"))
	}
	return entries
}

// bar0 is the address of a GPU's registers.
func bar0(slot int) uint64 { return 0x9000_0000 + uint64(slot)<<24 }

// configSpace is the PCI configuration space: the header, and a list of one capability (PCI Express).
func configSpace(b profiles.Board) []byte {
	c := make([]byte, 256)
	binary.LittleEndian.PutUint16(c[0x00:], 0x10de)
	binary.LittleEndian.PutUint16(c[0x02:], uint16(b.DeviceID()>>16))
	const hasCapabilities, capability, express = 0x10, 0x60, 0x10
	c[0x06], c[0x34], c[capability] = hasCapabilities, capability, express
	binary.LittleEndian.PutUint32(c[0x08:], 0x030200_a1)
	binary.LittleEndian.PutUint32(c[0x2c:], b.SubsystemID())
	return c
}

func cpuList(node int) string {
	first, last := engine.CPUs(node)
	return fmt.Sprintf("%d-%d", first, last)
}

// distances returns a node's row of the ACPI SLIT: 10 to itself; 12 within a socket of four and 32 across, or 21
// between two sockets.
func distances(n, nodes int) string {
	row := make([]string, nodes)
	for i := range row {
		switch {
		case i == n:
			row[i] = "10"
		case nodes <= 2:
			row[i] = "21"
		case i/4 == n/4:
			row[i] = "12"
		default:
			row[i] = "32"
		}
	}
	return strings.Join(row, " ")
}
