// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"fmt"
	"io"
	"strings"
	"time"

	"gpu-dra-driver/internal/nvml"
)

// List is nvidia-smi -L.
func List(out io.Writer, f Facts, indices []int) {
	for _, i := range indices {
		fmt.Fprintf(out, "GPU %d: %s (UUID: %s)\n", i, f.GPUs[i].Name, f.GPUs[i].UUID)
	}
}

const (
	wide  = 89
	left  = 41
	mid   = 24
	right = 22
)

// Table is nvidia-smi without arguments.
func Table(out io.Writer, f Facts, indices []int, now time.Time) {
	line := "+" + strings.Repeat("-", wide) + "+\n"
	split := "+" + strings.Repeat("-", left) + "+" + strings.Repeat("-", mid) + "+" + strings.Repeat("-", right) + "+\n"
	cuda := fmt.Sprintf("%d.%d", f.CUDA/1000, f.CUDA%1000/10)

	fmt.Fprintln(out, now.Format("Mon Jan _2 15:04:05 2006"))
	fmt.Fprint(out, line)
	fmt.Fprintf(out, "| NVIDIA-SMI %-18s    Driver Version: %-14s CUDA Version: %-8s |\n", f.Driver, f.Driver, cuda)
	fmt.Fprint(out, split)
	fmt.Fprintln(out, "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
	fmt.Fprintln(out, "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
	fmt.Fprintln(out, "|                                         |                        |               MIG M. |")
	fmt.Fprintln(out, "|"+strings.Repeat("=", left)+"+"+strings.Repeat("=", mid)+"+"+strings.Repeat("=", right)+"|")
	for _, i := range indices {
		row(out, i, f.GPUs[i])
		fmt.Fprint(out, split)
	}
	fmt.Fprintln(out)
	processes(out, f, indices)
}

func row(out io.Writer, index int, g GPU) {
	if g.Lost {
		fmt.Fprintf(out, "| %3d  %-27s %4s | %18s %3s | %20s |\n", index, cut(g.Name, 27), "ERR!", g.BusID, "Off", "ERR!")
		fmt.Fprintf(out, "| ERR!  ERR!  ERR!           ERR! / ERR! |%24s|%22s|\n", "Unknown Error ", "ERR!      ERR! ")
		fmt.Fprintf(out, "| %39s | %22s | %20s |\n", "", "", "ERR!")
		return
	}
	persistence, ecc, mig := "Off", "N/A", "N/A"
	if g.Persistence {
		persistence = "On"
	}
	if g.ECC {
		ecc = "0"
	}
	if g.MIGCapable {
		mig = "Disabled"
	}
	fmt.Fprintf(out, "| %3d  %-28s %4s | %18s %3s | %20s |\n", index, cut(g.Name, 28), persistence, g.BusID, "Off", ecc)
	fmt.Fprintf(out, "| N/A %4s    P%-2d %23s | %22s | %20s |\n",
		fmt.Sprintf("%dC", g.TemperatureC), g.PerfState, fmt.Sprintf("%dW / %4dW", g.PowerW, g.PowerLimitW),
		fmt.Sprintf("%dMiB / %6dMiB", g.UsedMiB(), g.MemoryMiB),
		fmt.Sprintf("%d%%   %11s", g.Utilization, computeMode(g.ComputeMode)))
	fmt.Fprintf(out, "| %39s | %22s | %20s |\n", "", "", mig)
}

func computeMode(m int) string {
	switch nvml.ComputeMode(m) {
	case nvml.ComputeExclusiveProcess:
		return "E. Process"
	case nvml.ComputeProhibited:
		return "Prohibited"
	}
	return "Default"
}

func processes(out io.Writer, f Facts, indices []int) {
	line := "+" + strings.Repeat("-", wide) + "+\n"
	fmt.Fprint(out, line)
	fmt.Fprintln(out, "| Processes:                                                                              |")
	fmt.Fprintln(out, "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |")
	fmt.Fprintln(out, "|        ID   ID                                                               Usage      |")
	fmt.Fprintln(out, "|"+strings.Repeat("=", wide)+"|")
	found := false
	for _, i := range indices {
		for _, p := range f.GPUs[i].Processes {
			found = true
			kind := "C"
			if p.Graphics {
				kind = "G"
			}
			fmt.Fprintf(out, "| %4d   N/A  N/A %16d   %4s   %-32s %11s |\n", i, p.PID, kind, cut(p.Name, 32), fmt.Sprintf("%dMiB", p.MemoryMiB))
		}
	}
	if !found {
		fmt.Fprintln(out, "|  No running processes found                                                             |")
	}
	fmt.Fprint(out, line)
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n-3] + "..."
	}
	return s
}
