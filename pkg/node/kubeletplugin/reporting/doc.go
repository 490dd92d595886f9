// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package reporting reports errors in the background: as Events on claims, their pods and the node, and in
// status.devices of claims. It also reports partitions that were destroyed while a prepared claim had them.
//
// Prepare never waits for it. While the API server is away, Events queue up and statuses are retried.
package reporting
