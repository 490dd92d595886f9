// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

// Field describes a parameter for the reference documentation.
type Field struct {
	// Path is below the object, as sharing.strategy.
	Path, Type, Default, Meaning string
}

// Fields are those of both kinds, in the order of the documentation.
var Fields = []Field{
	{"sharing", "object", "none", "How the processes on the device share it. Without it a share follows the node's setting, and a device that a claim has to itself is left alone."},
	{"sharing.strategy", "string", "required", "TimeSlicing: processes take turns, and nothing limits the memory of one. MPS: an MPS daemon runs them at once, each within limits."},
	{"sharing.timeSlicingConfig", "object", "{interval: Default}", "For TimeSlicing only."},
	{"sharing.timeSlicingConfig.interval", "string", "Default", "How long a process computes before it is another's turn: Default, Short, Medium or Long. It is the GPU's: sharers must agree. A MIG device has none to set."},
	{"sharing.mpsConfig", "object", "{}", "For MPS only. Where the claim has a share of the device, the share's limits hold too, and the smaller one counts."},
	{"sharing.mpsConfig.defaultActiveThreadPercentage", "int, 0 to 100", "all, or the share's compute", "The part of the SMs that each process may use, in percent. 0 is all."},
	{"sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", "quantity, at least 1Mi", "all, or the share's memory", "The memory that each process may allocate."},
	{"sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit", "map of quantities", "none", "The same for single devices, by UUID or by position in the claim (0, 1, …); it goes before the limit for all."},
	{"sharing.mpsConfig.multiUser", "bool", "where the driver can", "Whether processes of different users compute at once. true is refused where the driver's MPS cannot; with false they wait for each other."},
	{"topology", "object, in " + KindGPUConfig + " only", "none", "What containers are told of how the GPUs of the request are wired. For whole GPUs and NVLink groups, in one request of a claim."},
	{"topology.cudaVisibleDevices", "bool", "false", "Sets CUDA_VISIBLE_DEVICES to the request's GPUs by UUID, those that NVLink connects best side by side. CUDA then uses no GPU of another request in the same container."},
	{"topology.ncclTopology", "bool", "false", "Mounts a file that describes exactly the request's GPUs for NCCL (PCIe bridges, NUMA nodes, NVLinks) and sets NCCL_TOPO_FILE to it."},
}
