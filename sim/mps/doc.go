// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package mps replaces NVIDIA's MPS on simulated GPUs: the control daemon with its commands, pipes and limits. Its
// client does what CUDA does when CUDA_MPS_PIPE_DIRECTORY is set.
//
// Files, answers and faults follow driver 580.159.04 on an H200 (test/hardware/recorded). A client needs the socket
// `control` alone. An illegal access of one client ends the work of all, and the server takes no new client until all have
// ended.
//
// As with the real one, a server belongs to one user. Clients of another user wait until it has no client, unless the
// daemon serves all users. Each client is a process with limits of its own, and the end of a process frees its
// memory. A server is a child of its daemon. While it starts, get_server_list does not list it. It takes the default
// limits when it starts; later defaults are for later servers. Killing a daemon ends its server and the clients' contexts.
package mps

// Names in the daemon's pipe directory: its socket for all users, the one for commands of root, and the FIFO of its log.
const (
	ControlSocket    = "control"
	privilegedSocket = "control_privileged"
	logFIFO          = "log"
)

// Environment variables of daemon and clients, as NVIDIA's.
const (
	envPipe    = "CUDA_MPS_PIPE_DIRECTORY"
	envLog     = "CUDA_MPS_LOG_DIRECTORY"
	envDevices = "CUDA_VISIBLE_DEVICES"
	envMemory  = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	envThreads = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
)

const (
	defaultPipe = "/tmp/nvidia-mps"
	defaultLog  = "/var/log/nvidia-mps"
)

// request is a message to the daemon, one JSON object a line.
type request struct {
	// Hello is a client's first message, Command a line of the control program.
	Hello   *hello `json:"hello,omitempty"`
	Command string `json:"command,omitempty"`
	// Alloc requests memory, in bytes.
	Alloc uint64 `json:"alloc,omitempty"`
	// Load is the percentage of the device's multiprocessors that the client keeps busy from now on.
	Load int `json:"load,omitempty"`
	// Fault accesses an illegal address.
	Fault bool `json:"fault,omitempty"`
}

type hello struct {
	Memory  string `json:"memory,omitempty"`
	Threads string `json:"threads,omitempty"`
	Name    string `json:"name,omitempty"`
}

// response is a message of the daemon.
type response struct {
	Error  string `json:"error,omitempty"`
	Output string `json:"output,omitempty"`
	Info   *Info  `json:"info,omitempty"`
}

// Info describes a client's context.
type Info struct {
	// LimitMiB is the memory limit; Threads the limit of SMs in percent.
	LimitMiB uint64 `json:"limitMiB"`
	Threads  int    `json:"threads"`
	Server   int    `json:"server"`
	UUID     string `json:"uuid"`
	Minor    int    `json:"minor"`
	// Shm is the name of the shared memory file that must exist in the client's /dev/shm, or empty with driver 580 or later.
	Shm string `json:"shm,omitempty"`
}
