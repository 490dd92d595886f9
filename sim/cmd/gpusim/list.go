// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
)

func list(v verb, args []string, out io.Writer) error {
	f := newFlags(v, out, "")
	root := f.String("root", os.Getenv(rootVariable), "directory of the machine; without it the profiles are listed")
	if err := parseNone(f, args); err != nil {
		return err
	}
	if *root == "" {
		return listProfiles(out)
	}
	r, err := driverroot.Open(*root)
	if err != nil {
		return err
	}
	return show(r, out)
}

func listProfiles(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PROFILE\tGPUS\tMEMORY\tDRIVER\tDESCRIPTION")
	for _, name := range profiles.Names() {
		p, err := profiles.Load(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%d\t%d MiB\t%s\t%s\n", p.Name, len(p.Slots), p.Board.MemoryMiB, p.Driver.Version, p.Description)
	}
	return w.Flush()
}

func show(r *driverroot.Root, out io.Writer) error {
	s, err := r.State()
	if err != nil {
		return err
	}
	loaded := "loaded"
	if !s.DriverLoaded {
		loaded = "not loaded"
	}
	fmt.Fprintf(out, "%s: %s, driver %s %s, CUDA %d.%d, boot %d (%s)\n\n", r.Path, s.Profile.Name,
		s.Profile.Driver.Version, loaded, s.Profile.Driver.CUDA/1000, s.Profile.Driver.CUDA%1000/10, s.Boots, s.BootID)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "INDEX\tMINOR\tADDRESS\tROOT\tNUMA\tUUID\tUSED\tSTATE")
	index := 0
	for i := range s.GPUs {
		g := &s.GPUs[i]
		slot := s.Slot(g)
		if g.OffBus {
			fmt.Fprintf(w, "-\t-\t%s\t%s\t%d\t%s\t-\toff the bus (slot%d)\n", g.Address, slot.Path[0], slot.NUMANode, g.UUID, i)
			continue
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%d\t%s\t%d MiB\t%s\n", index, g.Minor, g.Address, slot.Path[0], slot.NUMANode, g.UUID, g.UsedMiB(), condition(g))
		index++
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, name := range s.AbsentSymbols {
		fmt.Fprintf(out, "\nlibrary lacks %s", name)
	}
	for _, fault := range s.Faults {
		fmt.Fprintf(out, "\nfault: %s", fault)
	}
	if len(s.Faults)+len(s.AbsentSymbols) > 0 {
		fmt.Fprintln(out)
	}
	return nil
}

func condition(g *engine.GPU) string {
	t := "ok"
	if g.Lost {
		t = "lost"
	}
	for _, fault := range []struct {
		there bool
		text  string
	}{
		{g.NodeMissing, "no device node"}, {g.Recovery != 0, "asks for " + g.RecoveryAction()},
		{g.RemapPending, "remap pending"}, {g.RemapFailed, "remap failed"}, {g.SRAMThreshold, "errors of on-chip memory"},
		{g.UnrepairableMemory, "memory unrepairable"}, {g.Slowdowns != 0, "clocks low"}, {g.LostLanes > 0, "few PCIe lanes"},
	} {
		if fault.there {
			t += ", " + fault.text
		}
	}
	if n := len(g.Processes); n > 0 {
		t += fmt.Sprintf(", %d processes", n)
	}
	for _, w := range g.Workloads {
		t += fmt.Sprintf(", %d %% by %s", w.Load, w.Owner)
	}
	return t
}

func reboot(v verb, args []string, out io.Writer) error {
	f := newFlags(v, out, "")
	root := f.String("root", os.Getenv(rootVariable), "directory of the machine")
	if err := parseNone(f, args); err != nil {
		return err
	}
	if err := needRoot(*root); err != nil {
		return err
	}
	r, err := driverroot.Open(*root)
	if err != nil {
		return err
	}
	if err := r.Update(func(s *engine.State) error { s.Reboot(); return nil }); err != nil {
		return err
	}
	return show(r, out)
}
