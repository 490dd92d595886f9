// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 holds the opaque parameters that claims and DeviceClasses may carry for this driver, in the group
// resource.nvidia.com that users of NVIDIA's DRA driver write.
//
// Decoding is strict: an unknown kind, field or type is an error that names it, because a parameter that is quietly
// ignored is a GPU that is quietly not what was asked for.
package v1beta1
