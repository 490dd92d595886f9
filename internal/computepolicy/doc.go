// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package computepolicy reads and sets a GPU's time slice with nvidia-smi compute-policy, and resets GPUs with
// nvidia-smi -r, because NVML has no functions for them. The program runs with the driver root as its root directory,
// if the root has a dynamic loader.
package computepolicy
