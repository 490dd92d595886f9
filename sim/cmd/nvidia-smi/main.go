// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command nvidia-smi stands in for NVIDIA's, on a simulated host and in its containers.
package main

import (
	"os"

	"gpu-dra-driver/sim/smi"
)

func main() {
	os.Exit(smi.Run(os.Args[1:], os.Getenv("GPUSIM_ROOT"), os.Stdout, os.Stderr))
}
