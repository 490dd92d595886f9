// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package smi is the nvidia-smi stand-in: what it knows and what it prints.
//
// On the simulated host it reads the machine's state. In a container the state is not at hand; the driver's firmware
// files are, for the container toolkit mounts them, so the static facts of every board travel in the placeholder
// firmware, and only GPUs whose device node is in /dev are shown, as the kernel would have it.
package smi
