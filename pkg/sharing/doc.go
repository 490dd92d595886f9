// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package sharing is what a node's administrator says about sharing GPUs: one file, for which a config file of NVIDIA's
// device plugin will do as it is. It turns into what of a device can be had in shares.
//
// A typo is an error that names the field, for a setting that is quietly ignored is a GPU that is quietly not shared as
// was meant. What only the device plugin knows is accepted and named.
package sharing
