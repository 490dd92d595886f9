// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"gpu-dra-driver/sim/engine"
)

const policyUsage = `    nvidia-smi compute-policy [-i ID,…] -l                  the time slice of GPUs
    nvidia-smi compute-policy [-i ID,…] --set-timeslice=N   set it: 0 default, 1 short, 2 medium, 3 long
`

var timeSlices = []string{"Default", "Short", "Medium", "Long"}

// computePolicy is nvidia-smi compute-policy. A container has no machine to change.
func computePolicy(args []string, root, own string, out, errOut io.Writer) int {
	var ids []string
	set, list := "", false
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
		case "-i", "--id":
			ids = strings.Split(next(), ",")
		case "-l", "--list":
			list = true
		case "--set-timeslice":
			set = next()
		default:
			fmt.Fprint(errOut, policyUsage)
			return exitInvalid
		}
	}
	facts, err := Find(root, own)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitNoNVML
	}
	indices, err := choose(facts, ids)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitNoFound
	}
	switch {
	case list && set == "":
		fmt.Fprint(out, "+-------------------------------------+\n| GPU compute policies:               |\n| GPU     Name           Value        |\n|=====================================|\n")
		for _, i := range indices {
			fmt.Fprintf(out, "|  %2d   Timeslice       %-10s    |\n", i, timeSlices[facts.GPUs[i].TimeSlice&3])
		}
		fmt.Fprint(out, "+-------------------------------------+\n")
		return 0
	case set == "" || list:
		fmt.Fprint(errOut, policyUsage)
		return exitInvalid
	}
	n, err := strconv.Atoi(set)
	if err != nil || n < 0 || n >= len(timeSlices) {
		fmt.Fprintf(errOut, "Option %q is invalid for \"--set-timeslice=%s\".\n", set, set)
		return exitInvalid
	}
	return setTimeSlice(facts, indices, n, root, own, out, errOut)
}

func setTimeSlice(facts Facts, indices []int, n int, root, own string, out, errOut io.Writer) int {
	machine := engine.Open(machineRoot(root, own), nil)
	for _, i := range indices {
		uuid := facts.GPUs[i].UUID
		err := change(machine, uuid, func(_ *engine.State, g *engine.GPU) error {
			switch {
			case g.Lost:
				return message("GPU is lost")
			case g.MIGEnabled:
				return message("Not Supported")
			}
			g.TimeSlice = n
			return nil
		})
		var said message
		switch {
		case err == nil:
			fmt.Fprintf(out, "Successfully set timeslice policy on GPU %s to %s.\n", uuid, timeSlices[n])
		case errors.As(err, &said):
			fmt.Fprintf(errOut, "Failed to set timeslice policy on GPU %s: %s\n", uuid, said)
			return exitInvalid
		default:
			fmt.Fprintf(errOut, "Failed to set timeslice policy on GPU %s: Insufficient Permissions\n", uuid)
			return exitInvalid
		}
	}
	return 0
}
