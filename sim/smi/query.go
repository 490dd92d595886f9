// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"fmt"
	"io"
	"strings"

	"gpu-dra-driver/internal/nvml"
)

type field struct {
	unit  string
	value func(f Facts, i int, g GPU) string
}

func number(unit string, value func(GPU) int) field {
	return field{unit, func(_ Facts, _ int, g GPU) string { return fmt.Sprint(value(g)) }}
}

func text(value func(GPU) string) field {
	return field{"", func(_ Facts, _ int, g GPU) string { return value(g) }}
}

func watts(value func(GPU) int) field {
	return field{"W", func(_ Facts, _ int, g GPU) string { return fmt.Sprintf("%d.00", value(g)) }}
}

func onOff(value func(GPU) bool) field {
	return text(func(g GPU) string {
		if value(g) {
			return "Enabled"
		}
		return "Disabled"
	})
}

func clock(name string, which int) field {
	return number("MHz", func(g GPU) int { return g.Clocks[name][which] })
}

var migMode = text(func(g GPU) string {
	if g.MIGCapable {
		return "Disabled"
	}
	return "[N/A]"
})

var fields = map[string]field{
	"index":              {"", func(_ Facts, i int, _ GPU) string { return fmt.Sprint(i) }},
	"count":              {"", func(f Facts, _ int, _ GPU) string { return fmt.Sprint(len(f.GPUs)) }},
	"driver_version":     {"", func(f Facts, _ int, _ GPU) string { return f.Driver }},
	"name":               text(func(g GPU) string { return g.Name }),
	"gpu_name":           text(func(g GPU) string { return g.Name }),
	"uuid":               text(func(g GPU) string { return g.UUID }),
	"gpu_uuid":           text(func(g GPU) string { return g.UUID }),
	"serial":             text(func(g GPU) string { return g.Serial }),
	"gpu_serial":         text(func(g GPU) string { return g.Serial }),
	"vbios_version":      text(func(g GPU) string { return g.VBIOS }),
	"pci.bus_id":         text(func(g GPU) string { return g.BusID }),
	"gpu_bus_id":         text(func(g GPU) string { return g.BusID }),
	"memory.total":       number("MiB", func(g GPU) int { return int(g.MemoryMiB) }),
	"memory.reserved":    number("MiB", func(g GPU) int { return int(g.ReservedMiB) }),
	"memory.used":        number("MiB", func(g GPU) int { return int(g.UsedMiB()) }),
	"memory.free":        number("MiB", func(g GPU) int { return int(g.MemoryMiB - g.ReservedMiB - g.UsedMiB()) }),
	"utilization.gpu":    number("%", func(g GPU) int { return g.Utilization }),
	"utilization.memory": number("%", func(g GPU) int { return g.MemoryUtil }),
	"temperature.gpu":    text(func(g GPU) string { return fmt.Sprint(g.TemperatureC) }),
	"power.draw":         watts(func(g GPU) int { return g.PowerW }),
	"power.limit":        watts(func(g GPU) int { return g.PowerLimitW }),
	"pstate":             text(func(g GPU) string { return fmt.Sprintf("P%d", g.PerfState) }),
	"persistence_mode":   onOff(func(g GPU) bool { return g.Persistence }),
	"ecc.mode.current":   onOff(func(g GPU) bool { return g.ECC }),
	"compute_mode": text(func(g GPU) string {
		return map[nvml.ComputeMode]string{nvml.ComputeProhibited: "Prohibited", nvml.ComputeExclusiveProcess: "Exclusive_Process"}[nvml.ComputeMode(g.ComputeMode)]
	}),
	"compute_cap":                           text(func(g GPU) string { return fmt.Sprintf("%d.%d", g.ComputeMajor, g.ComputeMinor) }),
	"mig.mode.current":                      migMode,
	"mig.mode.pending":                      migMode,
	"clocks.gr":                             clock("graphics", 0),
	"clocks.sm":                             clock("sm", 0),
	"clocks.mem":                            clock("memory", 0),
	"clocks.max.gr":                         clock("graphics", 1),
	"clocks.max.sm":                         clock("sm", 1),
	"clocks.max.mem":                        clock("memory", 1),
	"pcie.link.gen.current":                 text(func(g GPU) string { return fmt.Sprint(g.PCIeGen) }),
	"pcie.link.gen.max":                     text(func(g GPU) string { return fmt.Sprint(g.PCIeGen) }),
	"pcie.link.width.current":               text(func(g GPU) string { return fmt.Sprint(g.PCIeWidth) }),
	"pcie.link.width.max":                   text(func(g GPU) string { return fmt.Sprint(g.PCIeWidth) }),
	"fan.speed":                             text(func(GPU) string { return "[N/A]" }),
	"display_active":                        text(func(GPU) string { return "Disabled" }),
	"minor_number":                          text(func(g GPU) string { return fmt.Sprint(g.Minor) }),
	"timestamp":                             text(func(GPU) string { return "[N/A]" }),
	"ecc.errors.uncorrected.volatile.total": text(func(GPU) string { return "0" }),
}

// Query is nvidia-smi --query-gpu --format=csv.
func Query(out io.Writer, f Facts, indices []int, names []string, header, units bool) error {
	var heads []string
	for _, name := range names {
		fd, ok := fields[name]
		if !ok {
			return message(fmt.Sprintf("Field %q is not a valid field to query.", name))
		}
		if fd.unit != "" && units {
			name += " [" + fd.unit + "]"
		}
		heads = append(heads, name)
	}
	if header {
		fmt.Fprintln(out, strings.Join(heads, ", "))
	}
	for _, i := range indices {
		g := f.GPUs[i]
		var cells []string
		for _, name := range names {
			cells = append(cells, cell(f, i, g, fields[name], units))
		}
		fmt.Fprintln(out, strings.Join(cells, ", "))
	}
	return nil
}

func cell(f Facts, i int, g GPU, fd field, units bool) string {
	if g.Lost {
		return "[GPU is lost]"
	}
	v := fd.value(f, i, g)
	if v == "" {
		v = "Default"
	}
	if fd.unit != "" && units {
		v += " " + fd.unit
	}
	return v
}
