// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller keeps what a cluster as a whole needs for its GPUs: DeviceClasses and node labels that follow from
// ResourceSlices, cluster metrics, and the reviews of what people write.
//
// Two instances run. Both review; what is written only the leader writes, and it is a function of what the slices say, so
// that two who both believe they lead write the same. Traps: slices come and go with kubelets and plugins, so nothing is
// removed before it was unwanted for a while; a pool that is being written says nothing.
package controller
