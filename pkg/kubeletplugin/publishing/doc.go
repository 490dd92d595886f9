// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package publishing turns the node's GPUs into ResourceSlices and keeps them in the API server.
//
// Node knows the GPUs, and what claims hold of them, and builds the slices. Publisher finds out which features the API
// server has, and writes the slices while this instance of the plugin is the newest.
package publishing
