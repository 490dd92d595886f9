// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpu-dra-driver/sim/engine"
)

// Exit codes of the real program.
const (
	exitInvalid = 2
	exitNoFound = 6
	exitNoNVML  = 9
)

const noDevices = "No devices were found"

// message is an error in the words of the real program.
type message string

func (m message) Error() string { return string(m) }

// Run is the program. root is empty if the environment names none. A reset calls follow's result with the new state.
func Run(args []string, root string, follow func(root string) func(*engine.State) error, out, errOut io.Writer) int {
	own, err := os.Executable()
	if err != nil {
		own = "/"
	}
	if len(args) > 0 && args[0] == "compute-policy" {
		return computePolicy(args[1:], root, own, out, errOut)
	}
	o, err := parseArgs(args)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitInvalid
	}
	if o.help {
		fmt.Fprint(out, usage)
		return 0
	}
	facts, err := Find(root, own)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitNoNVML
	}
	indices, err := choose(facts, o.ids)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitNoFound
	}
	switch {
	case len(facts.GPUs) == 0:
		fmt.Fprintln(out, noDevices)
		return exitNoFound
	case o.reset:
		return reset(facts, indices, machineRoot(root, own), follow, out, errOut)
	case o.list:
		List(out, facts, indices)
	case len(o.query) > 0:
		if err := Query(out, facts, indices, o.query, o.header, o.units); err != nil {
			fmt.Fprintln(errOut, err)
			return exitInvalid
		}
	default:
		Table(out, facts, indices, time.Now())
	}
	return 0
}

const usage = `nvidia-smi of the GPU simulator

    nvidia-smi                                          the table
    nvidia-smi -L                                       one line for each GPU
    nvidia-smi --query-gpu=FIELD,… --format=csv[,noheader][,nounits]
    nvidia-smi -r [-i ID,…]                             reset GPUs that nobody uses
    -i, --id=ID,…                                       only GPUs of that index, UUID or bus ID
` + policyUsage

type options struct {
	help, list    bool
	reset         bool
	query         []string
	header, units bool
	ids           []string
}

func parseArgs(args []string) (options, error) {
	o := options{header: true, units: true}
	var format []string
	for i := 0; i < len(args); i++ {
		name, value, has := strings.Cut(args[i], "=")
		next := func() string {
			if !has && i+1 < len(args) {
				i++
				return args[i]
			}
			return value
		}
		switch name {
		case "-h", "--help":
			o.help = true
		case "-L", "--list-gpus":
			o.list = true
		case "-r", "--gpu-reset":
			o.reset = true
		case "-i", "--id":
			o.ids = strings.Split(next(), ",")
		case "--query-gpu":
			for _, field := range strings.Split(next(), ",") {
				o.query = append(o.query, strings.TrimSpace(field))
			}
		case "--format":
			for _, part := range strings.Split(next(), ",") {
				format = append(format, strings.TrimSpace(part))
			}
		default:
			return o, message("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n" + usage)
		}
	}
	if len(o.query) > 0 && !slices.Contains(format, "csv") {
		return o, message(`Option "--format=csv" is missing. Please run 'nvidia-smi -h' for help.`)
	}
	o.header = !slices.Contains(format, "noheader")
	o.units = !slices.Contains(format, "nounits")
	return o, nil
}

func choose(f Facts, ids []string) ([]int, error) {
	var chosen []int
	for i := range f.GPUs {
		if len(ids) == 0 {
			chosen = append(chosen, i)
		}
	}
	for _, id := range ids {
		i := slices.IndexFunc(f.GPUs, func(g GPU) bool {
			return g.UUID == id || strings.EqualFold(g.BusID, id) || strings.EqualFold(strings.TrimPrefix(g.BusID, "0000"), id)
		})
		if n, err := strconv.Atoi(id); err == nil && n >= 0 && n < len(f.GPUs) {
			i = n
		}
		if i < 0 {
			return nil, message(noDevices)
		}
		chosen = append(chosen, i)
	}
	return chosen, nil
}
