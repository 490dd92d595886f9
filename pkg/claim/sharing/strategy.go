// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"slices"
	"strconv"
	"strings"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/gpu"
)

// Names of executors in plans and records.
const (
	// MPSExecutor runs an MPS daemon for a device.
	MPSExecutor = "mps"
	// TimeSliceExecutor sets a GPU's time slice.
	TimeSliceExecutor = "time-slice"
)

// strategies has a row for each sharing strategy. A share whose claim names none gets the first that its GPU and node
// support.
var strategies = []Strategy{
	{
		Name: v1beta1.StrategyMPS, Section: "mps", Isolation: "mps", Executor: MPSExecutor,
		Daemon: true, Limits: true, Clients: maxClients,
		Env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + containerPipe},
		// A client connects to the socket on a read-only mount too, but cannot replace it: the claims of a GPU share
		// this directory. That was measured as root and as another user, with driver 580.159.04.
		Mounts: []Mount{{"pipe", containerPipe, "ro"}, {"shm", SharedMemory, "rw"}},
	},
	{
		Name:      v1beta1.StrategyTimeSlicing,
		Section:   "timeSlicing",
		Isolation: "time-slicing",
		Executor:  TimeSliceExecutor,
		Interval:  true,
	},
}

// containerPipe is CUDA's default, so a process that lost its environment still finds the daemon.
const containerPipe = "/tmp/nvidia-mps"

// SharedMemory is where the daemons of older drivers have files for their clients.
const SharedMemory = "/dev/shm"

// AnonymousMemory reports whether MPS of a driver version, "580.126.09", has no files in /dev/shm: measured with
// 580.159.04, whose server logs that its shared memory is anonymous. Then a container keeps its own /dev/shm.
func AnonymousMemory(driver string) bool {
	major, _, _ := strings.Cut(driver, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n >= 580
}

// Strategy is a row. Only the executor of the strategy knows more of it.
type Strategy struct {
	Name v1beta1.Strategy
	// Section is its name in the file with the node's settings, Isolation its value of the attribute isolation.
	Section, Isolation string
	// Executor is the name of the executor of its steps.
	Executor string
	// Interval means that a whole GPU has an interval to set. Only then it needs a step.
	Interval bool
	// Daemon means that processes use the device through its daemon: a node without supervisor has none, and a process
	// reaches one device only.
	Daemon bool
	// Limits means that each process is limited to its share of the memory and the SMs.
	Limits bool
	// Clients is the maximum number of clients of a GPU; 0 means no limit.
	Clients int
	// Env and Mounts are for containers.
	Env    []string
	Mounts []Mount
}

// Mount is a mount of a directory below the device's directory on the node.
type Mount struct{ Dir, ContainerPath, Access string }

// Of returns the row of a strategy. That of "", for a device whose processes are not configured, is zero.
func Of(name v1beta1.Strategy) Strategy {
	i := slices.IndexFunc(strategies, func(s Strategy) bool { return s.Name == name })
	if i < 0 {
		return Strategy{}
	}
	return strategies[i]
}

// Default returns the strategy of shares whose claims name none. supervised says whether the node has the supervisor of
// daemons.
func Default(p Policy, g gpu.GPU, supervised bool) Strategy {
	if p.Strategy != "" {
		return Of(p.Strategy)
	}
	return strategies[slices.IndexFunc(strategies, func(s Strategy) bool { // The last one supports all GPUs and nodes.
		return (supervised || !s.Daemon) && (g.MPSCapable || !s.Limits)
	})]
}
