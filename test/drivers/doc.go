// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package drivers tries the driver on simulated machines whose NVML lacks the functions of newer versions. The test writes a
// table in docs/compatibility.md.
package drivers
