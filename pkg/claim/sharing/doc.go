// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package sharing reads an administrator's file on sharing a node's GPUs, and computes the shares that devices offer.
// It accepts the config files of NVIDIA's device plugin unchanged.
//
// An unknown field is an error with its name, because a GPU must not stay unshared on account of a typo. Fields
// that only the device plugin uses are accepted and listed.
package sharing
