// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package health decides which faults a GPU has.
//
// Polls decide, and events only add: the order of events cannot end a fault. A fault ends after two polls in a row in
// which the driver asks for no recovery, because one answer can be wrong. A poll that failed changes nothing. Faults of
// memory end only with the board.
//
// XIDs are the driver's events. A driver's recovery actions (since R570) override the catalogue of XIDs. Then an XID
// only causes a poll, except for that of a GPU off the bus.
//
// Traps. Drivers before R570 have no recovery action, so their faults end with a reboot or a reload of the driver. The
// result depends only on the arguments: the caller stores it, and polls.
package health

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"gpu-dra-driver/pkg/gpu"
)

// The states of faulty GPUs, which are the values of the taint gpu.nvidia.com/unhealthy.
const (
	Lost       = "lost"
	Reboot     = "reboot"
	busReset   = "bus-reset"
	DrainReset = "drain-reset"
	Reset      = "reset"
	Memory     = "memory"
	Named      = "xid"
	DrainP2P   = "drain-p2p"

	UnreadableRecord = "unreadable-record"
)

// State describes a state. docs/reference/health.md is generated from it.
type State struct {
	Name string
	// Cause is the driver's report.
	Cause string
	// Remedy is the next step of an administrator, without a period at the end. ADDRESS stands for the GPU's PCI
	// address.
	Remedy string
	// Commands are the commands of the Remedy. ADDRESS is as there, NODE and GPU stand for the names of the node and
	// the GPU.
	Commands []string
	// GroupsOnly means that the GPU works, but not together with others.
	GroupsOnly bool
	// Usable means that claims that are allocated already are prepared.
	Usable bool
	// NeverEvicts means that no pod is evicted, because the state is not about the GPU.
	NeverEvicts bool
}

// States are all states, the worst first.
var States = []State{
	{Name: Lost, Cause: "the GPU has fallen off the bus",
		Remedy:   "drain the node and reboot it; if it happens again, check the board's seat and power",
		Commands: []string{drainCommand}},
	{Name: Reboot, Cause: "the driver asks for a reboot of the node",
		Remedy: "drain the node and reboot it", Commands: []string{drainCommand}},
	{Name: busReset, Cause: "the driver asks for a reset of the GPU's PCI bus",
		Remedy: "delete the pods on the GPU and reboot the node, or reset the bus with the board's tools"},
	{Name: DrainReset, Cause: "the driver asks for a reset of the GPU after its work has ended",
		Remedy:   "let the pods on the GPU end, then run on the node: nvidia-smi -r -i ADDRESS",
		Commands: []string{"nvidia-smi -r -i ADDRESS"}},
	{Name: Reset, Cause: "the driver asks for a reset of the GPU",
		Remedy:   "delete the pods on the GPU, then run on the node: nvidia-smi -r -i ADDRESS",
		Commands: []string{"nvidia-smi -r -i ADDRESS"}},
	{Name: Memory, Cause: "a faulty row of the GPU's memory could not be replaced",
		Remedy: "replace the board", Usable: true},
	{
		Name:   Named,
		Cause:  "the GPU reported an XID of the setting health.taintXIDs",
		Remedy: "read the NVRM messages in the node's kernel log, then reboot the node or reload its driver",
		Usable: true,
	},
	{Name: UnreadableRecord, Cause: "the record of the GPU's faults is unreadable",
		Remedy:   "check the node's disk and the GPU, then clear the fault by kubectl gpu clear, or reboot the node",
		Commands: []string{"kubectl gpu clear NODE/GPU"}, Usable: true, NeverEvicts: true},
	{Name: DrainP2P, Cause: "the driver asks to end peer-to-peer work on the GPU",
		Remedy: "delete the pods that use several GPUs, this one among them", GroupsOnly: true, Usable: true},
}

// RemedyFor returns the remedy with the PCI address of a GPU, if it is known.
func (s State) RemedyFor(pciAddress string) string {
	if pciAddress == "" {
		return s.Remedy
	}
	return strings.ReplaceAll(s.Remedy, "ADDRESS", pciAddress)
}

// CommandsFor returns the commands with the names of a GPU and its node.
func (s State) CommandsFor(node, gpu, pciAddress string) (out []string) {
	names := strings.NewReplacer("ADDRESS", pciAddress, "NODE", node, "GPU", gpu)
	for _, c := range s.Commands {
		out = append(out, names.Replace(c))
	}
	return out
}

// drainCommand lets the pods of a node end before its reboot.
const drainCommand = "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data"

// Lookup returns a state by its name. ok is false for a state that is not about a GPU's health.
func Lookup(name string) (s State, ok bool) {
	i := rank(name)
	if i < 0 {
		return State{}, false
	}
	return States[i], true
}

// Evictable returns the names of the states that may evict pods, the worst first.
func Evictable() []string {
	var out []string
	for _, s := range States {
		if !s.NeverEvicts {
			out = append(out, s.Name)
		}
	}
	return out
}

func rank(name string) int {
	return slices.IndexFunc(States, func(s State) bool { return s.Name == name })
}

// Reading is the driver's answer to a poll.
type Reading struct {
	// Recovery is NVML's number of the recovery action; NoRecovery: the driver has none.
	Recovery    int
	RemapFailed bool
	// SRAMWorn means that the GPU counted more uncorrectable errors of its SRAM than NVIDIA allows.
	SRAMWorn bool

	// The following cause advice only. At is the time of the answer.
	At           time.Time
	RemapPending bool
	// Slow means that heat or power reduces the clocks.
	Slow bool
	// NoPersistence means that the driver shuts the GPU down while no process has it open.
	NoPersistence bool
	// Width and MaxWidth are numbers of PCIe lanes. Busy is known only if they differ.
	Width, MaxWidth int
	Busy            bool
	// Corrected and Uncorrected count errors of memory since the driver was loaded, CorrectedRows and UncorrectedRows
	// the replaced rows by the errors that caused it. They are negative if unknown.
	Corrected, Uncorrected, CorrectedRows, UncorrectedRows int64
}

// NoRecovery is the recovery action of drivers before R570.
const NoRecovery = -1

// asked are the states of NVML's recovery actions. Recovery of an IMEX domain (5) concerns several nodes.
var asked = map[int]string{1: Reset, 2: Reboot, 3: DrainP2P, 4: DrainReset, 6: busReset, 7: Reboot}

// AsksReset reports whether the driver asks for a reset of the GPU.
func (r Reading) AsksReset() bool {
	return asked[r.Recovery] == Reset || asked[r.Recovery] == DrainReset
}

// cleanPolls is the number of polls in a row without a recovery action that end a fault.
const cleanPolls = 2

// lasting are the states that outlast such polls.
var lasting = []string{Memory, Named, UnreadableRecord}

// GPU holds the faults of one GPU. The zero GPU has none. It is a value: methods return a changed copy.
type GPU struct {
	// faults are the worst first, with unique states.
	faults []gpu.Fault
	// clean counts the last polls in a row without a recovery action.
	clean int
	// decides means that the driver reports recovery actions; polled that it has answered.
	decides, polled bool
	// failed counts the last failed queries in a row. refused means that the driver refuses to deliver XIDs.
	failed  int
	refused bool
	adviser adviser
}

// New returns a GPU with the remembered faults. It leaves out states that this version does not know.
func New(faults []gpu.Fault) GPU {
	var g GPU
	for _, f := range faults {
		if rank(f.State) >= 0 {
			g = g.add(f)
		}
	}
	return g
}

// Faults returns the present faults, the worst first.
func (g GPU) Faults() []gpu.Fault { return g.faults }

// Clearing reports that another poll without a recovery action ends faults.
func (g GPU) Clearing() bool { return g.clean > 0 && len(g.keep(lasting...)) < len(g.faults) }

// Event applies an XID.
func (g GPU) Event(code uint64, s Settings) GPU {
	if slices.Contains(s.Ignore, code) {
		return g
	}
	x := XIDOf(code)
	g.adviser.xid92 = g.adviser.xid92 || code == manyErrorsXID
	state := x.State()
	if g.decides && state != Lost {
		state = ""
	}
	if state == "" && slices.Contains(s.Taint, code) {
		state = Named
	}
	if state != "" {
		g = g.add(gpu.Fault{State: state, Cause: x.String()})
		g.clean = 0
	}
	return g
}

// Poll applies an answer.
func (g GPU) Poll(r Reading) GPU {
	g.adviser, g.failed, g.polled = g.adviser.poll(r), 0, true
	if r.RemapFailed {
		g = g.add(gpu.Fault{State: Memory, Cause: cause(Memory)})
	}
	if r.SRAMWorn {
		g = g.add(gpu.Fault{State: Memory, Cause: "the GPU's SRAM has too many uncorrectable errors"})
	}
	g.decides = r.Recovery != NoRecovery
	if state := asked[r.Recovery]; state != "" {
		g = g.add(gpu.Fault{State: state, Cause: cause(state)})
	}
	if r.Recovery != 0 {
		g.clean = 0
		return g
	}
	if g.clean++; g.clean >= cleanPolls {
		g.faults, g.clean = g.keep(lasting...), 0
	}
	return g
}

// Restarted ends the faults that a reboot or a reload of the driver ends.
func (g GPU) Restarted() GPU { return GPU{faults: g.keep(Memory)} }

// Cleared ends all faults, because an administrator says so.
func (g GPU) Cleared() GPU {
	g.faults, g.clean = nil, 0
	return g
}

// keep returns the faults with these states.
func (g GPU) keep(states ...string) []gpu.Fault {
	var out []gpu.Fault
	for _, f := range g.faults {
		if slices.Contains(states, f.State) {
			out = append(out, f)
		}
	}
	return out
}

// add adds a fault. The first cause of a state stays.
func (g GPU) add(f gpu.Fault) GPU {
	if slices.ContainsFunc(g.faults, func(o gpu.Fault) bool { return o.State == f.State }) {
		return g
	}
	g.faults = append(slices.Clone(g.faults), f)
	slices.SortFunc(g.faults, func(x, y gpu.Fault) int { return cmp.Compare(rank(x.State), rank(y.State)) })
	return g
}

func cause(state string) string { return States[rank(state)].Cause }
