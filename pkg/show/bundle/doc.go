// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package bundle writes support archives: bounded in size, without secrets, and equal for equal input.
package bundle
