// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package reporting tells people about claims and the node, off the path of Prepare: by Events, by status.devices of
// claims, and about partitions that vanished under prepared claims.
//
// Nothing waits for it. While the API server is away, Events queue and statuses are tried again.
package reporting
