// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/test/table"
)

// width is the width of the output.
const width = 120

// examples are demos of which the first one that runs on the board follows the index.
var examples = []string{"mig-one", "one-gpu"}

// formatAll shows a line for each demo, and one demo in full.
func formatAll(profile string, b *board, results []result) string {
	var out strings.Builder
	out.WriteString(b.describe(profile) + "\n\n")
	t := &table.Table{}
	t.Row("DEMO", "SHOWS", "PODS, AND THE DEVICES THAT THEY GET")
	waiting := 0
	for _, r := range results {
		if r.ready() < len(r.pods) {
			waiting++
		}
		t.Row(r.demo.Name, r.demo.Title, r.outcome())
	}
	out.WriteString(t.Format(width))
	fmt.Fprintf(&out, "\n%d demos; in %d of them a pod waits. For one in full, such as the next:  make try DEMO=NAME\n", len(results), waiting)
	fmt.Fprintf(&out, "On another of the %d boards in docs/reference/boards.md:  make try BOARD=NAME\n\n", len(profiles.Names()))
	out.WriteString(example(results).format())
	return out.String()
}

func example(results []result) result {
	for _, name := range examples {
		for _, r := range results {
			if r.demo.Name == name && r.ready() == len(r.pods) {
				return r
			}
		}
	}
	return results[0]
}

// outcome says in one line what the pods get, and why others wait. Pods with equal devices are counted.
func (r result) outcome() string {
	users := map[string]int{}
	for _, p := range r.pods {
		users[p.claimNames()]++
	}
	type words struct{ text, manner string }
	var order []words
	pods := map[words]int{}
	for _, p := range r.pods {
		w := words{text: r.board.inWords(p)}
		switch {
		case p.waits != "":
			w = words{p.waits, "waits"}
			if claim, reason, ok := strings.Cut(p.waits, ": "); ok && strings.HasPrefix(claim, "claim ") {
				w.text = reason
			}
			w.text = strings.TrimSuffix(strings.TrimSuffix(w.text, ", even with no other pod"), " that it needs")
		case users[p.claimNames()] > 1:
			w.manner = "together"
		case p.after:
			w.manner = "once others end"
		}
		if pods[w]++; pods[w] == 1 {
			order = append(order, w)
		}
	}
	var out []string
	for _, w := range order {
		switch n := pods[w]; {
		case w.manner == "waits" && n == 1:
			out = append(out, "1 waits: "+w.text)
		case w.manner == "waits":
			out = append(out, fmt.Sprintf("%d wait: %s", n, w.text))
		case n > 1 && w.manner != "together":
			out = append(out, strings.TrimSpace(fmt.Sprintf("%d: %s each %s", n, w.text, w.manner)))
		default:
			out = append(out, strings.TrimSpace(fmt.Sprintf("%d: %s %s", n, w.text, w.manner)))
		}
	}
	return strings.Join(out, "; ")
}

func (p placed) claimNames() string {
	var names []string
	for _, c := range p.claims {
		names = append(names, c.Name)
	}
	return strings.Join(names, ",")
}

// inWords names the devices of a pod by kind, such as "4 GPUs" or "10Gi of a GPU".
func (b *board) inWords(p placed) string {
	var order []string
	devices := map[string]int{}
	for _, c := range p.claims {
		for _, d := range c.Status.Allocation.Devices.Results {
			text := b.deviceInWords(d)
			if devices[text]++; devices[text] == 1 {
				order = append(order, text)
			}
		}
	}
	for i, text := range order {
		if n := devices[text]; n > 1 && text == "a GPU" {
			order[i] = fmt.Sprintf("%d GPUs", n)
		} else if n > 1 {
			order[i] = fmt.Sprintf("%d × %s", n, strings.TrimPrefix(text, "a "))
		}
	}
	return strings.Join(order, ", ")
}

func (b *board) deviceInWords(r resourceapi.DeviceRequestAllocationResult) string {
	d, err := gpu.ParseName(r.Device)
	if err != nil {
		return r.Device
	}
	name := "a GPU"
	switch d.Kind {
	case gpu.KindMIG:
		name = "a " + d.Profile
	case gpu.KindGroup:
		return fmt.Sprintf("%d linked GPUs", d.Size)
	}
	switch share := b.share(r); {
	case r.AdminAccess != nil && *r.AdminAccess:
		return "a monitor of " + name
	case strings.HasPrefix(share, "all"):
		return name
	default:
		memory, _, _ := strings.Cut(share, " ")
		return memory + " of " + name
	}
}

// formatFull shows one demo, with all slices of the board.
func formatFull(profile string, r result) string {
	return r.board.describe(profile) + "\n\n" + r.format() + "\n" +
		heading("Slices", "all devices of the board, in the scheduler's order") +
		devicesTable(r.board.devices(), func(gpu.Device) bool { return true })
}

func heading(name, text string) string {
	line := "== " + name + ": " + text + " "
	return line + strings.Repeat("=", max(0, width-len([]rune(line)))) + "\n"
}

// ready counts the pods that have their devices.
func (r result) ready() (n int) {
	for _, p := range r.pods {
		if p.waits == "" {
			n++
		}
	}
	return n
}

// format shows a demo: pods and devices, and the plan and the CDI spec of each claim.
func (r result) format() string {
	var out strings.Builder
	out.WriteString(heading(r.demo.Name, r.demo.Title))
	for _, line := range table.Wrap(r.demo.Description, width) {
		out.WriteString(line + "\n")
	}
	out.WriteString("\nAllocation\n")
	out.WriteString(r.allocation())
	held := map[string]bool{}
	for _, p := range r.pods {
		for _, c := range p.claims {
			for _, result := range c.Status.Allocation.Devices.Results {
				held[result.Device] = true
			}
		}
	}
	if len(held) > 0 {
		out.WriteString("\nSlices, the allocated devices\n")
		out.WriteString(devicesTable(r.board.devices(), func(d gpu.Device) bool { return held[d.Name()] }))
	}
	shown := map[string]bool{}
	for _, p := range r.pods {
		for _, c := range p.claims {
			if !shown[c.Name] && c.prepared.err == nil {
				out.WriteString(c.format())
			}
			shown[c.Name] = true
		}
	}
	return out.String()
}

// allocation is a table of the pods and what the scheduler gave them.
func (r result) allocation() string {
	t := &table.Table{Indent: 2}
	t.Row("POD", "CLAIM", "REQUEST", "DEVICE", "MEMORY")
	for _, p := range r.pods {
		if p.waits != "" {
			t.Row(p.name, "waits: "+p.waits)
			continue
		}
		name := p.name
		for _, c := range p.claims {
			label := c.Name
			for _, d := range c.Status.Allocation.Devices.Results {
				t.Row(name, label, d.Request, d.Device, r.board.share(d))
				name, label = "", ""
			}
		}
		if p.after {
			t.Row("", "after other pods of the Job have ended")
		}
	}
	return t.Format(width)
}

// share is the part of a device that an allocation has.
func (b *board) share(r resourceapi.DeviceRequestAllocationResult) string {
	if r.AdminAccess != nil && *r.AdminAccess {
		return "admin access"
	}
	if r.ShareID == nil {
		return "all"
	}
	memory, compute := r.ConsumedCapacity["memory"], r.ConsumedCapacity["compute"]
	text := memory.String()
	for _, d := range b.devices() {
		if total := d.Capacity["memory"].Value; d.Name == r.Device && total.Cmp(memory) == 0 {
			text = "all of " + text
		} else if d.Name == r.Device {
			text += " of " + total.String()
		}
	}
	if !compute.IsZero() {
		text += ", compute " + compute.String() + " %"
	}
	return text
}

// devicesTable is a line for each device that is wanted.
func devicesTable(devices []resourceapi.Device, wanted func(gpu.Device) bool) string {
	t := &table.Table{Indent: 2}
	t.Row("DEVICE", "TYPE", "MEMORY", "TAKES FROM SHARED COUNTERS")
	for _, d := range devices {
		named, err := gpu.ParseName(d.Name)
		if err != nil || !wanted(named) {
			continue
		}
		kind := string(named.Kind)
		if profile := d.Attributes["profile"].StringValue; profile != nil {
			kind += " " + *profile
		}
		memory := "-"
		if c, ok := d.Capacity["memory"]; ok {
			memory = c.Value.String()
			if p := c.RequestPolicy; p != nil && p.Default != nil && p.Default.Cmp(c.Value) < 0 {
				memory += ", share " + p.Default.String()
			}
		}
		t.Row(d.Name, kind, memory, counters(d))
	}
	return t.Format(width)
}

// counters names the shared counters from which a device takes, but for memory.
func counters(d resourceapi.Device) string {
	var out []string
	for _, use := range d.ConsumesCounters {
		var memory []int
		links, link := 0, ""
		for _, name := range slices.Sorted(maps.Keys(use.Counters)) {
			value := use.Counters[name].Value
			number, ok := strings.CutPrefix(name, "memory-slice-")
			n, err := strconv.Atoi(number)
			switch {
			case ok && err == nil:
				memory = append(memory, n)
			case name == "memory": // It stands in a column.
			case use.CounterSet == "nvlink-counter-set":
				links, link = links+1, "nvlink="+value.String()
			default:
				out = append(out, name+"="+value.String())
			}
		}
		if links > 1 {
			link += fmt.Sprintf(" of each of %d GPUs", links)
		}
		if links > 0 {
			out = append(out, link)
		}
		if len(memory) > 0 {
			text := fmt.Sprintf("memory-slice-%d", slices.Min(memory))
			if len(memory) > 1 {
				text += fmt.Sprintf("..%d", slices.Max(memory))
			}
			out = append([]string{text}, out...)
		}
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, " ")
}

// format shows the plan and the CDI spec of a prepared claim.
func (c claim) format() string {
	plan, spec := c.prepared.plan, c.prepared.spec
	// The annotations are the plan, which stands above, and the boot, which is the simulator's.
	spec.Annotations = nil
	plan.Devices = slices.Clone(plan.Devices)
	for i := range plan.Devices {
		if text := plan.Devices[i].TopologyEnv.NCCLTopology; text != "" {
			plan.Devices[i].TopologyEnv.NCCLTopology = fmt.Sprintf("(%d lines of XML)", strings.Count(text, "\n"))
		}
	}
	return "\nPlan of " + c.Name + "\n" + short(plan) + "\nCDI spec of " + c.Name + "\n" + short(spec)
}
