// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package executor holds the common parts of the executors: errors, and joining a device that other claims share.
package executor
