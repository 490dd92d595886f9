// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 has the GPU budget of a namespace: a limit on the GPUs and the memory that its claims can hold. The
// API group is the name of the driver, so that two drivers of a cluster have a budget each.
package v1alpha1
