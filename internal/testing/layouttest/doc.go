// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package layouttest holds the MIG profiles of some boards, as nvidia-smi mig -lgip and -lgipp print them, for tests
// and benchmarks of the geometry. The engines of the 12-slice board are invented.
package layouttest
