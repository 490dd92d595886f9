// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package whytest makes clusters in memory, by hand or at random, with the scheduler's own allocator beside them.
package whytest
