// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxGPUs is the largest number of GPUs in a machine: 256 minor numbers, less those of the control nodes.
const MaxGPUs = 64

// Validate returns all errors of a profile.
func (p Profile) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if p.Name == "" {
		bad("name is empty")
	}
	if p.Driver.Version == "" || p.Driver.NVMLVersion == "" || p.Driver.CUDA < 1000 {
		bad("driver: version, nvmlVersion and cuda are required")
	}
	if strings.ContainsAny(p.Driver.Version, "/ \x00") {
		bad("driver.version %q: a file name is made of it", p.Driver.Version)
	}
	b := p.Board
	if b.ProductName == "" || len(b.ProductName) >= 96 {
		bad("board.productName: 1 to 95 bytes, got %d", len(b.ProductName))
	}
	for field, v := range map[string]string{"pciDeviceID": b.PCIDeviceID, "pciSubsystemID": b.PCISubsystemID} {
		if _, err := parseID(v); err != nil {
			bad("board.%s: %w", field, err)
		}
	}
	if b.ReservedMiB >= b.MemoryMiB || b.MemoryMiB > 1<<40 {
		bad("board.reservedMiB %d must be below memoryMiB %d", b.ReservedMiB, b.MemoryMiB)
	}
	if b.Cores <= 0 || b.Multiprocessors <= 0 || b.Cores%b.Multiprocessors != 0 {
		bad("board.cores %d must be a multiple of multiprocessors %d", b.Cores, b.Multiprocessors)
	}
	if b.NVLinks < 0 || b.NVLinks > 36 {
		bad("board.nvlinks %d: 0 to 36", b.NVLinks)
	}
	if b.MIGCapable != (b.MaxMIGDevices > 0) {
		bad("board.maxMIGDevices must be set exactly where migCapable is")
	}
	if err := b.MIG.validate(b); err != nil {
		bad("board.%w", err)
	}
	if n := len(p.Slots); n == 0 || n > MaxGPUs {
		bad("slots: 1 to %d, got %d", MaxGPUs, n)
	}
	for i, s := range p.Slots {
		if i > 0 && s.Address <= p.Slots[i-1].Address {
			bad("slots[%d].address %s: slots are in order of address, each once", i, s.Address)
		}
		if err := s.validate(); err != nil {
			bad("slots[%d]: %w", i, err)
		}
	}
	links := make([]int, len(p.Slots))
	for i, w := range p.Wires {
		if w.A < 0 || w.B <= w.A || w.B >= len(p.Slots) || w.Links < 1 {
			bad("wires[%d]: links between two slots, the lower one first, got %+v", i, w)
			continue
		}
		links[w.A] += w.Links
		links[w.B] += w.Links
	}
	for i, n := range links {
		if n > b.NVLinks {
			bad("slots[%d] has %d NVLinks wired, and its board has %d", i, n, b.NVLinks)
		}
	}
	if b.Switches < 0 || b.Switches > 0 && (b.NVLinks == 0 || len(p.Wires) > 0) {
		bad("board.switches %d: only where NVLinks lead to switches", b.Switches)
	}
	if p.Fabric != nil {
		if _, err := p.Fabric.Cluster(); err != nil || !b.Fabric {
			bad("fabric: a clusterUUID, of a board with fabric: true (%v)", err)
		}
	}
	if len(p.Sources) == 0 {
		bad("sources is empty: every fact has a source")
	}
	for i, s := range p.Sources {
		if s.Facts == "" || s.Source == "" {
			bad("sources[%d] needs facts and source", i)
		}
	}
	return errors.Join(errs...)
}

func (s Slot) validate() error {
	if _, err := ParseAddress(s.Address); err != nil {
		return err
	}
	if len(s.Path) == 0 || len(s.Path[0]) != 10 || !strings.HasPrefix(s.Path[0], "pci") || s.Path[0][7] != ':' {
		return fmt.Errorf("path must begin with a root complex, \"pci0000:15\", got %q", s.Path)
	}
	for _, bridge := range s.Path[1:] {
		if _, err := ParseAddress(bridge); err != nil {
			return fmt.Errorf("path: %w", err)
		}
	}
	if s.NUMANode < -1 {
		return fmt.Errorf("numaNode %d: -1 or more", s.NUMANode)
	}
	return nil
}

// Cluster returns ClusterUUID in NVML's format.
func (f Fabric) Cluster() (out [16]byte, err error) {
	data, err := hex.DecodeString(strings.ReplaceAll(f.ClusterUUID, "-", ""))
	if err != nil || len(data) != len(out) {
		return out, fmt.Errorf("%q is not a UUID", f.ClusterUUID)
	}
	return [16]byte(data), nil
}

// Address is a PCI address in numbers.
type Address struct {
	Domain, Bus, Device, Function uint32
}

// ParseAddress parses the kernel's format only, "0000:1b:00.0".
func ParseAddress(s string) (Address, error) {
	var a Address
	fail := fmt.Errorf("%q is not a PCI address of the form dddd:bb:dd.f in lower-case hex", s)
	if len(s) != 12 || s[4] != ':' || s[7] != ':' || s[10] != '.' || s != strings.ToLower(s) {
		return a, fail
	}
	for i, part := range []struct {
		text string
		to   *uint32
	}{{s[0:4], &a.Domain}, {s[5:7], &a.Bus}, {s[8:10], &a.Device}, {s[11:12], &a.Function}} {
		v, err := strconv.ParseUint(part.text, 16, 32)
		if err != nil || i == 2 && v > 31 || i == 3 && v > 7 {
			return Address{}, fail
		}
		*part.to = uint32(v)
	}
	return a, nil
}

// DeviceID returns PCIDeviceID as a number. A validated board has one.
func (b Board) DeviceID() uint32 { v, _ := parseID(b.PCIDeviceID); return v }

// SubsystemID returns PCISubsystemID as a number.
func (b Board) SubsystemID() uint32 { v, _ := parseID(b.PCISubsystemID); return v }

func parseID(s string) (uint32, error) {
	hex, ok := strings.CutPrefix(s, "0x")
	v, err := strconv.ParseUint(hex, 16, 32)
	if !ok || err != nil || len(hex) != 8 {
		return 0, fmt.Errorf("%q is not a PCI ID of the form 0xDDDDVVVV", s)
	}
	return uint32(v), nil
}
