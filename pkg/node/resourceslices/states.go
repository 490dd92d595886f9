// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"slices"

	"gpu-dra-driver/pkg/gpu/health"
)

// States are the reasons other than faults of a GPU for which a device is unavailable. Usable means that the state
// alone refuses no claim that has the device. docs/reference/health.md is generated from it.
var States = []health.State{
	{
		Name: string(Absent),
		Cause: "a claim has the GPU, and NVIDIA's driver no longer lists it: the driver is unloaded, or the GPU " +
			"was removed",
		Remedy: "run on the node: nvidia-smi -i ADDRESS; if it fails, load the driver or reboot the node, or " +
			"delete the pod and its claim",
		Commands: []string{"nvidia-smi -i ADDRESS"},
	},
	{Name: string(Unreadable), Cause: "a required query of the GPU fails",
		Remedy:   "see the Event of the node, and run on the node: nvidia-smi -q -i ADDRESS",
		Commands: []string{"nvidia-smi -q -i ADDRESS"}},
	{
		Name:  string(Unknown),
		Cause: "NVML has failed or hung for a minute",
		Remedy: "run on the node: nvidia-smi -i ADDRESS; the state ends when it answers; if it hangs, reboot " +
			"the node",
		Commands: []string{"nvidia-smi -i ADDRESS"},
	},
	{Name: string(NotReady), Cause: "the GPU answers, but the driver for containers is not complete on the node",
		Remedy:   "see the Event of the node for the missing part, such as nvidia-uvm (modprobe nvidia-uvm)",
		Commands: []string{"modprobe nvidia-uvm"}},
	{Name: string(DevicePlugin), Cause: "a device plugin of the node serves the GPU",
		Remedy: "remove the device plugin or this driver from the node, as docs/migrating.md says"},
	{
		Name:   string(Withheld),
		Cause:  "a claim with an unreadable record may have the GPU",
		Remedy: "see the Event RecordUnreadable of the node; the state ends when that claim is looked up or released",
		Usable: true,
	},
	{
		Name:  string(InUse),
		Cause: "a program has the GPU open, so that its MIG mode cannot be switched on",
		Remedy: "stop the program that kubectl gpu doctor names, or run before it starts: nvidia-smi -mig 1 -i " +
			"ADDRESS",
		Commands: []string{"nvidia-smi -mig 1 -i ADDRESS"},
		Usable:   true,
	},
	{
		Name:  string(MIGMode),
		Cause: "the GPU's MIG mode is wrong for the device, and the driver may not switch it",
		Remedy: "run on the node: nvidia-smi -mig 1 -i ADDRESS for partitions, nvidia-smi -mig 0 -i ADDRESS for " +
			"the whole GPU",
		Commands: []string{"nvidia-smi -mig 1 -i ADDRESS", "nvidia-smi -mig 0 -i ADDRESS"},
		Usable:   true,
	},
	{
		Name:  string(External),
		Cause: "a partition that the driver did not create takes the place",
		Remedy: "run on the node, if nothing needs the partition: nvidia-smi mig -dci -i ADDRESS && nvidia-smi mig " +
			"-dgi -i ADDRESS",
		Commands: []string{"nvidia-smi mig -dci -i ADDRESS && nvidia-smi mig -dgi -i ADDRESS"},
		Usable:   true,
	},
	{
		Name:  string(Stuck),
		Cause: "NVML does not destroy the partition of an ended claim",
		Remedy: "stop monitoring agents on the GPU, then run on the node: nvidia-smi -r -i ADDRESS; or reboot " +
			"the node",
		Commands: []string{"nvidia-smi -r -i ADDRESS"},
		Usable:   true,
	},
	{Name: string(NVLink), Cause: "NVLink no longer connects the GPUs of the group",
		Remedy:   "run on the node: nvidia-smi nvlink --status -i ADDRESS; delete the pod to run it elsewhere",
		Commands: []string{"nvidia-smi nvlink --status -i ADDRESS"}, Usable: true},
	{Name: string(NoDemand), Cause: "no object asks for the partition or the group, so it is withdrawn soon",
		Remedy: "nothing is to be done; a claim for it brings it back", Usable: true},
	{Name: string(Cordoned), Cause: "an administrator took the GPU out of use, on an API server without taints",
		Remedy: "kubectl gpu uncordon NODE/GPU", Commands: []string{"kubectl gpu uncordon NODE/GPU"}, Usable: true},
}

// Describe returns a state of the unhealthy taint by its value.
func Describe(value string) (s health.State, ok bool) {
	if s, ok = health.Lookup(value); ok {
		return s, true
	}
	n := slices.IndexFunc(States, func(s health.State) bool { return s.Name == value })
	if n < 0 {
		return health.State{}, false
	}
	return States[n], true
}
