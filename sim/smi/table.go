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
		for n, p := range f.GPUs[i].Partitions {
			fmt.Fprintf(out, "  MIG %-11s Device %2d: (UUID: %s)\n", p.Profile, n, p.UUID)
		}
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
	fmt.Fprintf(out, "| NVIDIA-SMI %-23sDriver Version: %-15sCUDA Version: %-9s|\n", f.Driver, f.Driver, cuda)
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
	temperature, perf, power, limit := fmt.Sprintf("%dC", g.TemperatureC), fmt.Sprintf("P%d", g.PerfState), fmt.Sprintf("%dW", g.PowerW), fmt.Sprintf("%dW", g.PowerLimitW)
	used, total, util, mode := fmt.Sprintf("%dMiB", g.UsedMiB()), fmt.Sprintf("%dMiB", g.MemoryMiB), fmt.Sprintf("%d%%", g.Utilization), computeMode(g.ComputeMode)
	if g.Lost {
		const failed = "ERR!"
		persistence, ecc, mig = failed[:3], failed, failed
		temperature, perf, power, limit, used, total, util, mode = failed, failed[:3], failed, failed, failed, failed, failed, failed
	}
	fmt.Fprintf(out, "|%4d  %-31s%-3s |%19s %3s |%21s |\n", index, cut(g.Name, 30), persistence, g.BusID, "Off", ecc)
	fmt.Fprintf(out, "| N/A %5s    %-3s%15s / %5s |%11s / %9s |%8s %12s |\n", temperature, perf, power, limit, used, total, util, mode)
	fmt.Fprintf(out, "|%40s |%23s |%21s |\n", "", "", mig)
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
			fmt.Fprintf(out, "|%5d   N/A  N/A%16d%7s   %-36s%10s |\n", i, p.PID, kind, cut(p.Name, 36), fmt.Sprintf("%dMiB", p.MemoryMiB))
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
