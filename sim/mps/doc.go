// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package mps stands in for NVIDIA's MPS on simulated GPUs: the control daemon with its commands, pipes and limits, and a
// client that does what CUDA does when CUDA_MPS_PIPE_DIRECTORY is set.
//
// As with the real one: a server is for one user, and clients of another wait until it has none, unless the daemon
// serves all users; each client is a process with limits of its own; who dies takes its memory with it; a daemon that is
// killed takes its clients' contexts with it. Unlike the real one, a server is no process of its own.
package mps

// ControlSocket is the daemon's in its pipe directory.
const ControlSocket = "control"

// Environment of daemon and clients, as NVIDIA's.
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

// request is what goes to the daemon, one JSON object a line.
type request struct {
	// Hello is a client's first word, Command one of the control program.
	Hello   *hello `json:"hello,omitempty"`
	Command string `json:"command,omitempty"`
	// Alloc asks for memory, in bytes.
	Alloc uint64 `json:"alloc,omitempty"`
}

type hello struct {
	Memory  string `json:"memory,omitempty"`
	Threads string `json:"threads,omitempty"`
	Name    string `json:"name,omitempty"`
}

// response is the daemon's.
type response struct {
	Error  string `json:"error,omitempty"`
	Output string `json:"output,omitempty"`
	Info   *Info  `json:"info,omitempty"`
}

// Info is what a client gets.
type Info struct {
	// LimitMiB is what it may allocate; Threads the percentage of the SMs it may use.
	LimitMiB uint64 `json:"limitMiB"`
	Threads  int    `json:"threads"`
	Server   int    `json:"server"`
	UUID     string `json:"uuid"`
	Minor    int    `json:"minor"`
	// Shm is the name of the shared memory that it must find in its /dev/shm.
	Shm string `json:"shm"`
}
