// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package cdi builds one CDI spec from the container edits of a claim's devices.
//
// A claim has one spec with one CDI device for each allocated device, so a container gets only the devices of its
// requests. An annotation holds the claim's plan, which replaces a lost record.
//
// Traps. Edits without device nodes are an error, because the container would start without a GPU. A runtime can cache
// specs by device name; names contain the claim's UID and are never used twice.
package cdi
