// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package publishing converts the node's GPUs to ResourceSlices and keeps them in the API server.
//
// Node knows the GPUs and the held devices, and builds the slices. Publisher detects the API server's features, and
// writes the slices while this instance of the plugin is the newest.
package publishing
