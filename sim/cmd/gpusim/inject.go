// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
)

const faults = `GPU is an index, a UUID, a PCI address, or slot<N>. QUERY is an NVML function; without _v2 it means all
its versions; "*" means every query.

  lose GPU            it falls off: NVML answers "GPU is lost"     restore GPU    undoes it, as a reset: without partitions
  remove GPU          it leaves the bus, /dev, /proc and /sys      add GPU        undoes it
  unload              the kernel driver goes                       load           undoes it
  hide-node GPU       its device node goes missing                 show-node GPU  undoes it
  fail QUERY          it answers --code (--gpu, --after, --times)
  slow QUERY          it takes --latency (--gpu, --after, --times)
  clear [QUERY]       removes the faults of a query, or all
  no-memory GPU       memory queries answer "not supported"
  process GPU         --pid holds it, with --memory MiB            end GPU        --pid lets go
                      (--gpu-instance and --compute-instance: a part of it; --load: percent of its multiprocessors in use)
  monitor GPU         a monitoring client (--name) holds it        unmonitor GPU  lets go
  virtualize AS GPU   it is in a virtual machine: passthrough, or vgpu, whose GPU only the host can cut; none undoes it
  no-persistence GPU  its persistence mode is off                  persistence GPU  undoes it
  destroy HOW GPU     instances are not destroyed: refused ("in use"), or ignored (success); none undoes it
  hide-reset GPU      its MIG mode stays pending, as in a guest    show-reset GPU undoes it
  link-down GPU       its NVLink --link goes down                  link-up GPU    undoes it
  fabric-pending GPU  it waits for the fabric manager              fabric-ready GPU  undoes it
  fabric-failed GPU   the fabric manager refuses it                fabric-ready GPU  undoes it
  recovery ACTION GPU the driver asks for reset, drain-p2p, drain-reset, bus-reset or imex, which nvidia-smi -r undoes, or for
                      reboot or system-reboot; none undoes it
  remap STATE GPU     a row of memory is to be replaced: pending until a reset, or failed for ever; none undoes it
  ecc KIND GPU        --count errors of memory: correctable or uncorrectable; sram or unrepairable, for ever; none undoes it
  xid N [GPU]         the driver reports XID N, --count times (--gi, --ci: of a part; --pid, --name: the process in the kernel's
                      log, dev/kmsg)
  throttle REASON GPU its clocks are low: thermal, hw-thermal, power-brake or hw-slowdown; none undoes it
  pcie-width N GPU    its PCIe link has N lanes
  nvlink-errors N GPU its NVLink --link has N more errors
  set GPU             --utilization, --memory-utilization, --temperature, --power, --compute-mode

`

// injection is a parsed command line of inject.
type injection struct {
	root, fault, target string
	gpu, code           string
	after, times        int
	latency             time.Duration
	readings            map[string]int
	pid, memory         uint64
	name                string
	value, cgroup       string
	load                int
	graphics, late      bool
	gi, ci, link        int
	count               uint64
}

// valued are the faults with a word before the GPU.
var valued = []string{"destroy", "virtualize", "recovery", "remap", "ecc", "xid", "throttle", "pcie-width", "nvlink-errors"}

func inject(v verb, args []string, out io.Writer) error {
	in, err := parseInjection(v, args, out)
	if err != nil {
		return err
	}
	r, err := driverroot.Open(in.root)
	if err != nil {
		return err
	}
	return r.Update(in.apply)
}

func parseInjection(v verb, args []string, out io.Writer) (injection, error) {
	f := newFlags(v, out, faults)
	in := injection{readings: map[string]int{}}
	f.StringVar(&in.root, "root", os.Getenv(rootVariable), "directory of the machine")
	f.StringVar(&in.gpu, "gpu", "", "only on this `GPU`")
	f.StringVar(&in.code, "code", "UNKNOWN", "NVML's answer, by `name` (GPU_IS_LOST) or number")
	f.IntVar(&in.after, "after", 0, "number `N` of calls that succeed first")
	f.IntVar(&in.times, "times", 0, "number `N` of calls that fail (0: all)")
	f.DurationVar(&in.latency, "latency", 0, "`time` that the query takes")
	f.Uint64Var(&in.pid, "pid", 0, "process ID")
	f.StringVar(&in.cgroup, "cgroup", "", "`directory` of the process's cgroup, which can have a limit of memory")
	f.Uint64Var(&in.memory, "memory", 0, "memory that the process holds, in `MiB`")
	f.IntVar(&in.load, "load", 0, "`percent` of its device's multiprocessors that the process keeps busy")
	f.StringVar(&in.name, "name", "", "name of the process")
	f.IntVar(&in.link, "link", 0, "NVLink for link-down and link-up, by `index`")
	f.IntVar(&in.gi, "gpu-instance", -1, "GPU instance that the process runs on, by `ID`")
	f.IntVar(&in.gi, "gi", -1, "short for --gpu-instance, by `ID`")
	f.IntVar(&in.ci, "compute-instance", 0, "compute instance of it, by `ID`")
	f.IntVar(&in.ci, "ci", 0, "short for --compute-instance, by `ID`")
	f.Uint64Var(&in.count, "count", 1, "`number` of XIDs or errors")
	f.BoolVar(&in.late, "after-effect", false, "fail returns --code after the query has changed the state")
	f.BoolVar(&in.graphics, "graphics", false, "a graphics process")
	for _, name := range []string{"utilization", "memory-utilization", "temperature", "power", "compute-mode"} {
		f.Func(name, "`value` for set: percent, degrees Celsius, watts, NVML's number", func(s string) error {
			n, err := strconv.Atoi(s)
			in.readings[name] = n
			return err
		})
	}
	words, err := parse(f, args)
	if err != nil {
		return in, err
	}
	if err := needRoot(in.root); err != nil {
		return in, err
	}
	if len(words) == 2 && words[0] == "xid" {
		words = append(words, "0")
	}
	if len(words) == 3 && slices.Contains(valued, words[0]) {
		in.value = words[1]
		words = slices.Delete(words, 1, 2)
	}
	if len(words) == 0 || len(words) > 2 {
		return in, fmt.Errorf("give a fault and what it hits: gpusim inject --help lists them")
	}
	in.fault = words[0]
	if len(words) == 2 {
		in.target = words[1]
	}
	return in, nil
}

func (in injection) apply(s *engine.State) error {
	switch in.fault {
	case "unload", "load":
		if in.target != "" {
			return fmt.Errorf("%s takes no GPU: the driver is one", in.fault)
		}
		s.DriverLoaded = in.fault == "load"
		return nil
	case "clear":
		s.Faults = slices.DeleteFunc(s.Faults, func(f engine.Fault) bool { return in.target == "" || f.Query == in.target })
		return nil
	case "fail", "slow":
		return in.applyFault(s)
	}
	if in.target == "" {
		return fmt.Errorf("%s needs a GPU: an index, a UUID, a PCI address, or slot<N>", in.fault)
	}
	g, err := s.Find(in.target)
	if err != nil {
		return err
	}
	if g.OffBus && in.fault != "add" {
		return fmt.Errorf("%s: GPU %s is off the bus: gpusim inject add %s first", in.fault, g.Address, g.Address)
	}
	return in.applyGPU(s, g)
}

func (in injection) applyGPU(s *engine.State, g *engine.GPU) error {
	switch in.fault {
	case "lose":
		g.Lost = true
		s.RaiseXID(g, 79, "GPU has fallen off the bus.")
	case "restore":
		if g.Lost {
			g.Instances = nil // Hardware comes back by a reset.
		}
		g.Lost = false
	case "remove":
		s.Remove(g)
	case "add":
		s.Add(g)
	case "hide-node", "show-node":
		g.NodeMissing = in.fault == "hide-node"
	case "no-memory":
		s.Faults = append(s.Faults, engine.Fault{Query: "nvmlDeviceGetMemoryInfo", GPU: g.UUID, Code: nvml.NotSupported})
	case "process":
		if in.pid == 0 || in.pid > 1<<31 {
			return fmt.Errorf("process needs --pid, 1 to 2147483648")
		}
		p := engine.Process{PID: uint32(in.pid), Name: in.name, MemoryMiB: in.memory, Load: in.load, Graphics: in.graphics}
		if in.gi >= 0 {
			if i := g.Instance(in.gi); i == nil || i.Compute(in.ci) == nil {
				return fmt.Errorf("GPU %s has no compute instance %d in a GPU instance %d", g.Address, in.ci, in.gi)
			}
			p.Place = &engine.Place{GPUInstance: in.gi, ComputeInstance: in.ci}
		}
		if in.cgroup != "" {
			cgroup, err := engine.CgroupAt(in.cgroup)
			if err != nil {
				return fmt.Errorf("--cgroup: %w", err)
			}
			p.Cgroup = cgroup
		}
		return s.AddProcess(g, p)
	case "end":
		return s.RemoveProcess(g, uint32(in.pid))
	case "monitor":
		g.Monitors = append(g.Monitors, cmp.Or(in.name, "nv-hostengine"))
	case "unmonitor":
		g.Monitors = nil
	case "link-down", "link-up":
		if in.link < 0 || in.link >= s.Profile.Board.NVLinks {
			return fmt.Errorf("--link %d: the GPU has %d NVLinks, from 0", in.link, s.Profile.Board.NVLinks)
		}
		g.LinksDown = slices.DeleteFunc(g.LinksDown, func(l int) bool { return l == in.link })
		if in.fault == "link-down" {
			g.LinksDown = append(g.LinksDown, in.link)
		}
	case "fabric-pending", "fabric-failed", "fabric-ready":
		if !s.Profile.Board.Fabric {
			return fmt.Errorf("%s: the board registers with no fabric", in.fault)
		}
		g.Fabric = map[string]engine.FabricFault{"fabric-pending": engine.FabricPending, "fabric-failed": engine.FabricFailed}[in.fault]
	case "destroy":
		how, known := map[string]engine.DestroyFault{"refused": engine.DestroyRefused, "ignored": engine.DestroyIgnored, "none": ""}[in.value]
		if !known {
			return fmt.Errorf("destroy %q: give refused, ignored or none, and a GPU", in.value)
		}
		g.Destroys = how
	case "virtualize":
		as, known := map[string]nvml.VirtualizationMode{
			"none": nvml.VirtualizationNone, "passthrough": nvml.VirtualizationPassthrough, "vgpu": nvml.VirtualizationVGPU,
		}[in.value]
		if !known {
			return fmt.Errorf("virtualize %q: give passthrough, vgpu or none, and a GPU", in.value)
		}
		g.Virtualization = as
	case "no-persistence", "persistence":
		g.Persistence = in.fault == "persistence"
	case "recovery":
		return s.SetRecovery(g, in.value)
	case "remap":
		return s.SetRemap(g, in.value)
	case "ecc":
		return s.AddECC(g, in.value, in.count)
	case "throttle":
		return g.SetSlowdown(in.value)
	case "xid", "pcie-width", "nvlink-errors":
		return in.applyNumber(s, g)
	case "hide-reset", "show-reset":
		g.ResetHidden = in.fault == "hide-reset"
	case "set":
		return setReadings(g, in.readings)
	default:
		return fmt.Errorf("no fault %q: gpusim inject --help lists them", in.fault)
	}
	return nil
}

// applyNumber applies the faults whose value is a number.
func (in injection) applyNumber(s *engine.State, g *engine.GPU) error {
	n, err := strconv.ParseUint(in.value, 10, 32)
	if err != nil {
		return fmt.Errorf("%s %q: give a number, and a GPU", in.fault, in.value)
	}
	switch in.fault {
	case "pcie-width":
		if n > uint64(s.Profile.Board.PCIeWidth) {
			return fmt.Errorf("pcie-width %d: the board has %d lanes", n, s.Profile.Board.PCIeWidth)
		}
		g.LostLanes = s.Profile.Board.PCIeWidth - int(n)
	case "nvlink-errors":
		if in.link < 0 || in.link >= s.Profile.Board.NVLinks {
			return fmt.Errorf("--link %d: the GPU has %d NVLinks, from 0", in.link, s.Profile.Board.NVLinks)
		}
		if len(g.LinkErrors) == 0 {
			g.LinkErrors = make([]uint64, s.Profile.Board.NVLinks)
		}
		g.LinkErrors[in.link] += n
	case "xid":
		if in.pid > 1<<31 || in.count > 100_000 {
			return fmt.Errorf("xid takes a --pid up to 2147483648 and a --count up to 100000")
		}
		e := engine.Event{Type: engine.EventXID, Data: n, GPUInstance: -1, ComputeInstance: -1, PID: uint32(in.pid), Process: in.name}
		if in.gi >= 0 {
			if g.Instance(in.gi) == nil {
				return fmt.Errorf("GPU %s has no GPU instance %d", g.Address, in.gi)
			}
			e.GPUInstance, e.ComputeInstance = in.gi, in.ci
		}
		for range in.count {
			s.RaiseOf(g, e)
		}
	}
	return nil
}

func setReadings(g *engine.GPU, readings map[string]int) error {
	if len(readings) == 0 {
		return fmt.Errorf("set needs a value: --utilization, --memory-utilization, --temperature, --power or --compute-mode")
	}
	for name, n := range readings {
		switch name {
		case "utilization", "memory-utilization":
			if n < 0 || n > 100 {
				return fmt.Errorf("--%s %d: 0 to 100 percent", name, n)
			}
			if name == "utilization" {
				g.Utilization = n
			} else {
				g.MemoryUtil = n
			}
		case "temperature":
			g.TemperatureC = n
		case "power":
			g.PowerW = n
		case "compute-mode":
			if n < 0 || n > 3 {
				return fmt.Errorf("--compute-mode %d: 0 default, 2 prohibited, 3 exclusive process", n)
			}
			g.ComputeMode = n
		}
	}
	return nil
}

func (in injection) applyFault(s *engine.State) error {
	fault := engine.Fault{AfterEffect: in.late, Query: in.target, After: in.after, Times: in.times, Latency: in.latency}
	if in.target != "*" && !strings.HasPrefix(in.target, "nvml") {
		return fmt.Errorf("%s needs an NVML function, like nvmlDeviceGetName, or \"*\"; got %q", in.fault, in.target)
	}
	if in.after < 0 || in.times < 0 || in.latency < 0 {
		return fmt.Errorf("--after, --times and --latency must not be negative")
	}
	if in.gpu != "" {
		g, err := s.Find(in.gpu)
		if err != nil {
			return err
		}
		fault.GPU = g.UUID
	}
	if in.fault == "slow" {
		if in.latency == 0 {
			return fmt.Errorf("slow needs --latency, like 250ms")
		}
	} else {
		code, err := parseCode(in.code)
		if err != nil {
			return err
		}
		fault.Code = code
	}
	s.Faults = append(s.Faults, fault)
	return nil
}
