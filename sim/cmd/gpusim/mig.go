// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
)

const migHelp = `GPU is an index, a UUID, a PCI address, or slot<N>. START is the first memory slice of an instance.

  mode GPU on|off               switch the MIG mode
  create GPU PROFILE[:START]    make a GPU instance and the compute instance that takes all of it
                                (--no-compute-instance: only the first; --compute PROFILES: others, like 1c,1c)
  destroy GPU START|all         take instances away, as nvidia-smi does: not while something uses them
  vanish GPU START|all          take them away under whatever uses them
  reset GPU                     reset the GPU: instances go, a pending mode becomes the mode
  list                          show what is there

`

func mig(v verb, args []string, out io.Writer) error {
	f := newFlags(v, out, migHelp)
	root := f.String("root", os.Getenv(rootVariable), "directory of the machine")
	bare := f.Bool("no-compute-instance", false, "create leaves the GPU instance without a compute instance")
	compute := f.String("compute", "", "compute `slices` of several compute instances, like 1,1")
	words, err := parse(f, args)
	if err != nil {
		return err
	}
	if err := needRoot(*root); err != nil {
		return err
	}
	r, err := driverroot.Open(*root)
	if err != nil {
		return err
	}
	if len(words) == 1 && words[0] == "list" {
		return listInstances(r, out)
	}
	want := map[string]int{"mode": 3, "create": 3, "destroy": 3, "vanish": 3, "reset": 2}
	if len(words) == 0 || want[words[0]] != len(words) {
		return errors.New("give one of the actions with its arguments: gpusim mig --help lists them")
	}
	return r.Update(func(s *engine.State) error {
		g, err := s.Find(words[1])
		if err != nil {
			return err
		}
		switch words[0] {
		case "mode":
			return setMode(s, g, words[2])
		case "create":
			return create(s, g, words[2], *bare, *compute)
		case "destroy":
			return destroy(s, g, words[2])
		case "vanish":
			start, err := parseStart(words[2])
			if err == nil && !s.Vanish(g, start) {
				err = fmt.Errorf("nothing is at %s", words[2])
			}
			return err
		}
		return refused("reset", s.ResetGPU(g))
	})
}

func refused(what string, code nvml.Code) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", what, code)
}

func setMode(s *engine.State, g *engine.GPU, word string) error {
	if word != "on" && word != "off" {
		return fmt.Errorf("mode is on or off, not %q", word)
	}
	return refused("switch the MIG mode "+word, s.SetMIGMode(g, word == "on"))
}

func create(s *engine.State, g *engine.GPU, what string, bare bool, compute string) error {
	name, at, placed := strings.Cut(what, ":")
	start := engine.AnyStart
	if placed {
		n, err := parseStart(at)
		if err != nil {
			return err
		}
		start = n
	}
	var profile profiles.GPUInstanceProfile
	if m := s.Profile.Board.MIG; m != nil {
		for _, p := range m.GPUInstances {
			if p.Name == name {
				profile = p
			}
		}
	}
	if profile.Name == "" {
		return fmt.Errorf("the board has no MIG profile %q", name)
	}
	i, code := s.CreateInstance(g, profile.ID, start)
	if code != 0 || bare {
		return refused("create a GPU instance of "+what, code)
	}
	sizes := []string{strconv.Itoa(profile.Slices)}
	if compute != "" {
		sizes = strings.Split(compute, ",")
	}
	for _, size := range sizes {
		id := -1
		for _, c := range profile.ComputeInstances() {
			if strconv.Itoa(c.Slices) == size {
				id = c.ID
			}
		}
		if _, code := s.CreateCompute(g, i.ID, id); code != 0 {
			return refused("create a compute instance of "+size+" slices", code)
		}
	}
	return nil
}

func destroy(s *engine.State, g *engine.GPU, what string) error {
	start, err := parseStart(what)
	if err != nil {
		return err
	}
	found := false
	for _, i := range append([]engine.Instance(nil), g.Instances...) {
		if start != engine.AnyStart && i.Start != start {
			continue
		}
		found = true
		for _, c := range append([]engine.Compute(nil), i.Computes...) {
			if code := s.DestroyCompute(g, i.ID, c.ID); code != 0 {
				return refused(fmt.Sprintf("destroy compute instance %d of GPU instance %d", c.ID, i.ID), code)
			}
		}
		if code := s.DestroyInstance(g, i.ID); code != 0 {
			return refused(fmt.Sprintf("destroy GPU instance %d", i.ID), code)
		}
	}
	if !found {
		return fmt.Errorf("no GPU instance is at %s", what)
	}
	return nil
}

func parseStart(word string) (int, error) {
	if word == "all" {
		return engine.AnyStart, nil
	}
	n, err := strconv.Atoi(word)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a memory slice: a number from 0, or all", word)
	}
	return n, nil
}

func listInstances(r *driverroot.Root, out io.Writer) error {
	s, err := r.State()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ADDRESS\tMODE\tPROFILE\tSTART\tSIZE\tGPU INSTANCE\tCOMPUTE INSTANCES")
	for _, n := range s.OnBus() {
		g := &s.GPUs[n]
		mode := map[bool]string{false: "off", true: "on"}[g.MIGEnabled]
		if g.MIGPending != g.MIGEnabled {
			mode += ", pending"
		}
		if s.Profile.Board.MIG == nil {
			mode = "none"
		}
		if len(g.Instances) == 0 {
			fmt.Fprintf(w, "%s\t%s\t-\t-\t-\t-\t-\n", g.Address, mode)
		}
		for _, i := range g.Instances {
			p, _ := s.Profile.Board.MIG.Profile(i.ProfileID)
			var computes []string
			for _, c := range i.Computes {
				computes = append(computes, c.UUID)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%s\n", g.Address, mode, p.Name, i.Start, i.Size, i.ID, strings.Join(computes, " "))
		}
	}
	return w.Flush()
}
