// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 holds the opaque parameters of claims and DeviceClasses for this driver. Users of NVIDIA's DRA
// driver write the same group, resource.nvidia.com.
//
// Decoding is strict: the error names the unknown kind, field or type. If the driver ignored such a parameter, the
// pod would get a differently configured GPU, without an error.
package v1beta1
