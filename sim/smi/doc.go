// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package smi replaces nvidia-smi: it collects the facts and prints them.
//
// On the simulated host it reads the machine's state. A container has no state file, but the container toolkit mounts
// the driver's firmware files. So the placeholder firmware holds the static facts of every board. Only GPUs with a
// device node in /dev are shown, as with the real kernel.
package smi
