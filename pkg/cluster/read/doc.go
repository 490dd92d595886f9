// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package read lists and watches the objects of a cluster, in little memory. A ResourceSlice is large until it is
// trimmed or packed, so lists of slices are read in pages or as a stream.
package read
