// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command nvidia-smi replaces NVIDIA's, on a simulated host and in its containers. Under the name
// nvidia-cuda-mps-control it replaces the MPS control program, which runs it as nvidia-cuda-mps-server. nvidia-modprobe is
// another name.
package main

import (
	"cmp"
	"fmt"
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
	case driverroot.ModprobeProgram:
		if err := driverroot.Load(cmp.Or(root, machine(), "/")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	default:
		os.Exit(smi.Run(os.Args[1:], root, driverroot.Follow, os.Stdout, os.Stderr))
	}
	os.Exit(mps.Run(os.Args[1:], os.Environ(), cmp.Or(root, machine()), os.Stdin, os.Stdout, os.Stderr))
}

// machine returns the root that has this program in usr/bin.
func machine() string {
	own, err := os.Executable()
	if err != nil {
		return ""
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(own)))
}
