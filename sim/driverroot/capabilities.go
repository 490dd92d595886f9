// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/smi"
)

const (
	capabilitiesDir = "proc/driver/nvidia/capabilities"
	capNodesDir     = "dev/nvidia-caps"
)

func access(minor uint32, mode int) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, mode)
}

func capNode(minor uint32, mode int) Entry {
	e := node(fmt.Sprintf("%s/nvidia-cap%d", capNodesDir, minor), majorCaps, minor)
	e.Mode = 0o444
	if mode == configMode {
		e.Mode = 0o400
	}
	return e
}

// The modes of capability files, in decimal as the kernel prints them.
const (
	configMode = 0o400
	useMode    = 0o444
)

// capabilities returns the files and nodes of MIG: those of the machine and those of each instance.
func capabilities(s *engine.State) []Entry {
	if !s.Profile.Board.MIGCapable {
		return nil
	}
	entries := []Entry{capNode(1, configMode), capNode(2, useMode)}
	if !s.DriverLoaded {
		return nodesOf(s, entries)
	}
	entries = append(entries, file(capabilitiesDir+"/mig/config", access(1, configMode)), file(capabilitiesDir+"/mig/monitor", access(2, useMode)))
	for _, i := range s.OnBus() {
		g := &s.GPUs[i]
		dir := fmt.Sprintf("%s/gpu%d/mig", capabilitiesDir, g.Minor)
		entries = append(entries, Entry{Path: dir, Kind: Dir})
		for _, gi := range g.Instances {
			minor := engine.InstanceMinor(g.Minor, gi.ID)
			at := fmt.Sprintf("%s/gi%d", dir, gi.ID)
			entries = append(entries, file(at+"/access", access(minor, useMode)), capNode(minor, useMode))
			for _, ci := range gi.Computes {
				minor := engine.ComputeMinor(g.Minor, gi.ID, ci.ID)
				entries = append(entries, file(fmt.Sprintf("%s/ci%d/access", at, ci.ID), access(minor, useMode)), capNode(minor, useMode))
			}
		}
	}
	return nodesOf(s, entries)
}

// nodesOf leaves device nodes out while the machine has none.
func nodesOf(s *engine.State, entries []Entry) []Entry {
	return slices.DeleteFunc(entries, func(e Entry) bool { return s.NodesMissing && e.Kind == CharDevice })
}

// migMinors is the kernel's table of all possible capabilities.
func migMinors(s *engine.State) string {
	var b strings.Builder
	b.WriteString("config 1\nmonitor 2\n")
	for _, i := range s.OnBus() {
		minor := s.GPUs[i].Minor
		for gi := range engine.MaxInstances {
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", minor, gi, engine.InstanceMinor(minor, gi))
			for ci := range engine.MaxComputes {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", minor, gi, ci, engine.ComputeMinor(minor, gi, ci))
			}
		}
	}
	return b.String()
}

// Follow updates a root's capabilities and its file of MIG devices to match the state. libnvidia-ml.so.1 calls it
// after each change, in place of the kernel module. It leaves device nodes out if it cannot make them, as in a
// container without CAP_MKNOD.
func Follow(root string) func(*engine.State) error {
	return func(s *engine.State) error {
		if err := writeContainerFile(root, s); err != nil {
			return err
		}
		entries := withParents(capabilities(s))
		before, err := readManifest(root)
		if err != nil {
			return err
		}
		have := map[string]bool{}
		for _, p := range before {
			have[p] = true
		}
		var made, stale []Entry
		wanted := map[string]bool{}
		for _, e := range entries {
			wanted[e.Path] = true
			if !have[e.Path] {
				made = append(made, e)
			}
		}
		for _, p := range before {
			if !wanted[p] && (strings.HasPrefix(p, capabilitiesDir+"/") || strings.HasPrefix(p, capNodesDir+"/")) {
				stale = append(stale, Entry{Path: p})
			}
		}
		return follow(root, before, made, stale)
	}
}

// Load loads the module nvidia_uvm and makes the device nodes of the machine in a root, as nvidia-modprobe does. It leaves
// the driver's other files as they are.
func Load(root string) error {
	sync := func(s *engine.State) error {
		before, err := readManifest(root)
		if err != nil {
			return err
		}
		return follow(root, before, withParents(slices.Concat(devices(s), proc(s), capabilities(s))), nil)
	}
	return engine.Open(root, sync).Update(func(s *engine.State) error {
		s.UVMMissing, s.NodesMissing = false, false
		return nil
	})
}

// writeContainerFile writes the MIG devices into the file that containers mount. A running container keeps the file
// of its start, with its own partition.
func writeContainerFile(root string, s *engine.State) error {
	content, err := smi.Partitions(s).Firmware()
	if err != nil {
		return err
	}
	return replace(filepath.Join(root, firmwareDir(s), smi.PartitionsFile), func(tmp string) error {
		return os.WriteFile(tmp, content, 0o644)
	})
}

func follow(root string, before []string, made, stale []Entry) error {
	if len(made) == 0 && len(stale) == 0 {
		return nil
	}
	paths := func(entries []Entry) (out []string) {
		for _, e := range entries {
			out = append(out, e.Path)
		}
		return out
	}
	after := append(slices.Clone(before), paths(made)...)
	if len(made) > 0 {
		if err := writeManifest(root, after); err != nil {
			return err
		}
	}
	if err := removeAll(root, paths(stale)); err != nil {
		return err
	}
	for _, e := range made {
		if err := e.make(filepath.Join(root, e.Path)); err != nil && (e.Kind != CharDevice || !errors.Is(err, syscall.EPERM)) {
			return err
		}
	}
	if len(stale) == 0 {
		return nil
	}
	gone := paths(stale)
	return writeManifest(root, slices.DeleteFunc(after, func(p string) bool { return slices.Contains(gone, p) }))
}
