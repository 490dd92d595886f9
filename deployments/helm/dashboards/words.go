// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpu-dra-driver/pkg/gpu/health"
)

// condition is the weight of states of a GPU in the timeline of its health, with its word.
type condition struct {
	text, color string
	states      []string
}

// conditions are all states of the metric gpu_dra_device_health, the worst last.
var conditions = []condition{
	{"healthy", "green", []string{"healthy"}},
	{"advice", "yellow", adviceNames()},
	{"not readable", "purple", []string{"unmonitored", "unreadable", health.UnreadableRecord}},
	{"XID", "light-orange", []string{health.Named}},
	{"end peer-to-peer work", "orange", []string{health.DrainP2P}},
	{"faulty memory", "dark-orange", []string{health.Memory}},
	{"needs a reset", "light-red", []string{health.Reset, health.DrainReset, "bus-reset"}},
	{"needs a reboot", "red", []string{health.Reboot}},
	{"lost", "dark-red", []string{health.Lost}},
}

func adviceNames() (out []string) {
	for _, a := range health.Advices {
		out = append(out, a.Name)
	}
	return out
}

// worst is the index of the worst condition of each GPU.
func worst() string {
	var parts []string
	for i, c := range conditions {
		parts = append(parts, fmt.Sprintf(`gpu_dra_device_health{state=~"%s"} * %d`, strings.Join(c.states, "|"), i))
	}
	return "max by (cluster, uuid) (" + strings.Join(parts, " or ") + ")"
}

func healthWords() (out []mapping) {
	for i, c := range conditions {
		out = append(out, mapping{strconv.Itoa(i), c.text, c.color})
	}
	return out
}

// unseen are the states of GPUs whose faults the driver cannot see.
var unseen = []health.State{
	{Name: "unreadable", Cause: "the plugin cannot read the GPU", Remedy: "see the Event of the node, and run on the node: nvidia-smi -q -i ADDRESS"},
	{Name: "unmonitored", Cause: "faults of the GPU cannot be seen", Remedy: "see the Event of the node, and docs/health.md"},
}

// stateCells are the columns of a table whose labels state, cause and remedy all have the state's name.
func stateCells() map[string]cell {
	var names, causes, remedies []mapping
	for _, s := range slices.Concat(health.States, unseen, health.Advices) {
		at := slices.IndexFunc(conditions, func(c condition) bool { return slices.Contains(c.states, s.Name) })
		names = append(names, mapping{s.Name, s.Name, conditions[at].color})
		causes = append(causes, mapping{s.Name, s.Cause, ""})
		remedies = append(remedies, mapping{s.Name, s.Remedy, ""})
	}
	return map[string]cell{"node": {width: 150}, "device": {width: 150}, "state": {names, 130}, "cause": {causes, 0}, "remedy": {remedies, 0}}
}

// actions are NVML's numbers of recovery actions.
var actions = []mapping{
	{"0", "none", "green"}, {"1", "reset the GPU", "orange"}, {"2", "reboot the node", "red"}, {"3", "end peer-to-peer work", "yellow"},
	{"4", "let work end, then reset", "orange"}, {"5", "reset the IMEX domain", "red"}, {"6", "reset the PCI bus", "red"}, {"7", "reboot the system", "red"},
}
