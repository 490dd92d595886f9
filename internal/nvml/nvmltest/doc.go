// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nvmltest makes NVML fail. WithFaults sends each change through a host.FaultHook, as the crash matrix needs
// it. Calls answers any call of the simulated NVML with an error, or lets it hang.
package nvmltest
