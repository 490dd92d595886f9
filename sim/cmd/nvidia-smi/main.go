// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command nvidia-smi replaces NVIDIA's, on a simulated host and in its containers. Under the name
// nvidia-cuda-mps-control it replaces the MPS control program, which runs it as nvidia-cuda-mps-server.
package main

import (
	"os"
	"path/filepath"

	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/mps"
	"gpu-dra-driver/sim/smi"
)

func main() {
	root := os.Getenv("GPUSIM_ROOT")
	switch filepath.Base(os.Args[0]) {
	case mps.Program:
	case mps.ServerProgram:
		os.Exit(mps.Serve(os.Stdin, os.Stdout))
	default:
		os.Exit(smi.Run(os.Args[1:], root, driverroot.Follow, os.Stdout, os.Stderr))
	}
	if own, err := os.Executable(); err == nil && root == "" {
		root = filepath.Dir(filepath.Dir(filepath.Dir(own)))
	}
	os.Exit(mps.Run(os.Args[1:], os.Environ(), root, os.Stdin, os.Stdout, os.Stderr))
}
