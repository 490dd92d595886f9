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
	"gpu-dra-driver/test/table"
)

const (
	// width is the width of the output.
	width = 120
	// brief is how many rows of a kind a demo gets among all demos, and briefDevices how many devices a plan or spec gets.
	brief, briefDevices = 8, 2
)

// formatAll shows all demos, after an index and the board's slices.
func formatAll(profile string, b *board, results []result) string {
	var out strings.Builder
	out.WriteString(b.describe(profile) + "\n\n")
	t := &table.Table{}
	t.Row("DEMO", "PODS", "CLAIMS", "SHOWS")
	waiting := 0
	for _, r := range results {
		ready, claims := r.ready(), map[string]bool{}
		for _, p := range r.pods {
			for _, c := range p.claims {
				claims[c.Name] = true
			}
		}
		pods := strconv.Itoa(ready)
		if n := len(r.pods) - ready; n > 0 {
			waiting++
			pods = fmt.Sprintf("%d of %d", ready, len(r.pods))
		}
		t.Row(r.demo.Name, pods, strconv.Itoa(len(claims)), r.demo.Title)
	}
	out.WriteString(t.Format(width))
	fmt.Fprintf(&out, "\n%d demos; in %d of them a pod waits. PODS: those that have their devices. CLAIMS: the prepared ones.\n",
		len(results), waiting)
	out.WriteString("One demo in full: make try DEMO=" + results[0].demo.Name + "\n\n")
	out.WriteString(heading("Slices", "the devices of the first GPU and the NVLink groups; the other GPUs have the same"))
	first := ""
	if len(b.snapshot.GPUs) > 0 {
		first = b.snapshot.GPUs[0].PCIAddress
	}
	out.WriteString(devicesTable(b.devices(), func(d gpu.Device) bool { return d.Kind == gpu.KindGroup || d.PCIAddress == first }))
	for _, r := range results {
		out.WriteString("\n" + r.format(brief))
	}
	return out.String()
}

// formatFull shows one demo, with all slices of the board.
func formatFull(profile string, r result) string {
	return r.board.describe(profile) + "\n\n" + r.format(1<<20) + "\n" +
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

// format shows a demo with at most limit rows of a kind. Of claims of one template it shows one plan and one spec.
func (r result) format(limit int) string {
	var out strings.Builder
	out.WriteString(heading(r.demo.Name, r.demo.Title))
	for _, line := range table.Wrap(r.demo.Description, width) {
		out.WriteString(line + "\n")
	}
	out.WriteString("\nAllocation\n")
	out.WriteString(r.allocation(limit))
	held := map[string]bool{}
	for _, p := range r.pods {
		for _, c := range p.claims {
			for _, result := range c.Status.Allocation.Devices.Results {
				if len(held) < limit {
					held[result.Device] = true
				}
			}
		}
	}
	if len(held) > 0 {
		out.WriteString("\nSlices, the allocated devices\n")
		out.WriteString(devicesTable(r.board.devices(), func(d gpu.Device) bool { return held[d.Name()] }))
	}
	devices := limit
	if limit == brief {
		devices = briefDevices
	}
	shown, names, left := map[string]bool{}, map[string]bool{}, 0
	for _, p := range r.pods {
		for _, c := range p.claims {
			switch {
			case names[c.Name] || c.prepared.err != nil:
				continue
			case limit == brief && shown[c.origin]:
				left++
			default:
				out.WriteString(c.format(devices))
			}
			shown[c.origin], names[c.Name] = true, true
		}
	}
	if left > 0 {
		fmt.Fprintf(&out, "\n%s alike. All of them: make try DEMO=%s\n", count(left, "more claim is", "more claims are"), r.demo.Name)
	}
	return out.String()
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// allocation is a table of the pods and what the scheduler gave them.
func (r result) allocation(limit int) string {
	t := &table.Table{Indent: 2}
	t.Row("POD", "CLAIM", "REQUEST", "DEVICE", "MEMORY")
	rows, left := 0, 0
	for _, p := range r.pods {
		if rows >= limit && p.waits == "" {
			left++
			continue
		}
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
				rows++
			}
		}
		if p.after {
			t.Row("", "after other pods of the Job have ended")
		}
	}
	if left > 0 {
		t.Row("… and " + count(left, "more pod", "more pods"))
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

// counters names the shared counters from which a device takes, but for the GPU's memory, which stands in a column.
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
			case use.CounterSet == "nvlink-counter-set":
				links, link = links+1, "nvlink="+value.String()
			case name != "memory":
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

// format shows the plan and the CDI spec of a prepared claim, each with at most limit devices.
func (c claim) format(limit int) string {
	plan, spec := c.prepared.plan, c.prepared.spec
	// The annotations are the plan, which stands above, and the boot, which is the simulator's.
	spec.Annotations = nil
	plan.Devices = slices.Clone(plan.Devices)
	for i := range plan.Devices {
		if text := plan.Devices[i].TopologyEnv.NCCLTopology; text != "" {
			plan.Devices[i].TopologyEnv.NCCLTopology = fmt.Sprintf("(%d lines of XML)", strings.Count(text, "\n"))
		}
	}
	text := "\nPlan of " + c.Name
	if more := len(plan.Devices) - limit; more > 0 {
		plan.Devices, plan.Steps = plan.Devices[:limit], plan.Steps[:min(limit, len(plan.Steps))]
		text += fmt.Sprintf(", without %s", count(more, "more device", "more devices"))
	}
	text += "\n" + short(plan) + "\nCDI spec of " + c.Name
	if more := len(spec.Devices) - limit; more > 0 {
		spec.Devices = spec.Devices[:limit]
		text += fmt.Sprintf(", without %s", count(more, "more device", "more devices"))
	}
	return text + "\n" + short(spec)
}
