// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command gpusim creates, shows, changes and removes simulated machines with GPUs.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/profiles"
)

// rootVariable has the default of --root, as for the library and nvidia-smi.
const rootVariable = "GPUSIM_ROOT"

func main() {
	do := run
	if filepath.Base(os.Args[0]) == kubectlName {
		do = onNode
	}
	if err := do(os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "gpusim:", err)
		os.Exit(1)
	}
}

type verb struct {
	usage, about string
	run          func(v verb, args []string, out io.Writer) error
}

func verbs() map[string]verb {
	return map[string]verb{
		"up":     {"up --profile NAME --root DIR [flags]", "make a machine: driver libraries, device nodes, /proc and /sys, state", up},
		"down":   {"down --root DIR", "remove a machine and nothing else", down},
		"list":   {"list [--root DIR]", "show a machine's GPUs and faults, or the profiles there are", list},
		"inject": {"inject --root DIR FAULT [GPU or QUERY] [flags]", "break, restore or load a machine", inject},
		"mig":    {"mig --root DIR mode|create|destroy|vanish|reset|list [GPU] [WHAT]", "change MIG as nvidia-smi mig does, or remove instances in use", mig},
		"reboot": {"reboot --root DIR", "reboot a machine: new boot ID; faults, processes and lost GPUs are gone", reboot},
	}
}

func run(args []string, out io.Writer) error {
	all := verbs()
	if len(args) == 0 || args[0] == "--help" || args[0] == "-h" || args[0] == "help" {
		fmt.Fprint(out, "gpusim simulates machines with NVIDIA GPUs.\n\n")
		names := make([]string, 0, len(all))
		for name := range all {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			fmt.Fprintf(out, "  gpusim %-50s %s\n", all[name].usage, all[name].about)
		}
		fmt.Fprint(out, "\ngpusim VERB --help says more.\n")
		return nil
	}
	v, ok := all[args[0]]
	if !ok {
		return fmt.Errorf("no verb %q: gpusim --help lists them", args[0])
	}
	return v.run(v, args[1:], out)
}

func newFlags(v verb, out io.Writer, more string) *flag.FlagSet {
	f := flag.NewFlagSet(v.usage, flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprintf(out, "gpusim %s\n  %s\n\n%s", v.usage, v.about, more)
		f.PrintDefaults()
	}
	return f
}

// parse reads flags at any position and returns the other words.
func parse(f *flag.FlagSet, args []string) ([]string, error) {
	usage := f.Usage
	f.Usage = func() {}
	var words []string
	for {
		if err := f.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				usage()
				return nil, err
			}
			return nil, err
		}
		if f.NArg() == 0 {
			return words, nil
		}
		words, args = append(words, f.Arg(0)), f.Args()[1:]
	}
}

func parseNone(f *flag.FlagSet, args []string) error {
	words, err := parse(f, args)
	if err == nil && len(words) > 0 {
		return fmt.Errorf("unexpected %q: --help shows the flags", words[0])
	}
	return err
}

func needRoot(root string) error {
	if root == "" {
		return fmt.Errorf("--root is required, or the variable %s: the directory of the machine", rootVariable)
	}
	return nil
}

func up(v verb, args []string, out io.Writer) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	beside := func(name string) string { return filepath.Join(filepath.Dir(own), name) }
	f := newFlags(v, out, "The directory must be empty or absent. Needs root, for device nodes.\n\n")
	var o driverroot.Options
	root := f.String("root", "", "directory to make the machine in")
	f.StringVar(&o.Profile, "profile", "", "machine: "+strings.Join(profiles.Names(), ", "))
	f.IntVar(&o.GPUs, "gpus", 0, "fill only the first `N` slots (0: all)")
	f.StringVar(&o.Seed, "seed", "", "vary UUIDs and serial numbers, for several machines of one profile")
	f.StringVar(&o.DriverVersion, "driver-version", "", "version of the driver, such as 550.54.15 (empty: the profile's)")
	f.StringVar(&o.Library, "lib", beside("libnvidia-ml.so.1"), "NVML library to install")
	f.StringVar(&o.SMI, "smi", beside("nvidia-smi"), "nvidia-smi stand-in to install")
	f.BoolVar(&o.Bare, "bare", false, "no device nodes and no module nvidia_uvm, until nvidia-modprobe runs in the root")
	f.Func("without-symbol", "NVML `function` that the library lacks, as in an older driver; may be repeated", func(s string) error {
		o.Without = append(o.Without, s)
		return nil
	})
	if err := parseNone(f, args); err != nil {
		return err
	}
	if err := needRoot(*root); err != nil {
		return err
	}
	if o.Profile == "" {
		return fmt.Errorf("--profile is required: one of %s", strings.Join(profiles.Names(), ", "))
	}
	r, err := driverroot.Up(*root, o)
	if err != nil {
		return err
	}
	return show(r, out)
}

func down(v verb, args []string, out io.Writer) error {
	f := newFlags(v, out, "")
	root := f.String("root", os.Getenv(rootVariable), "directory of the machine")
	if err := parseNone(f, args); err != nil {
		return err
	}
	if err := needRoot(*root); err != nil {
		return err
	}
	return driverroot.Down(*root)
}
