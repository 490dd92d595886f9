// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodetemplate predicts the ResourceSlices of a node that does not exist yet, for autoscalers and for planning,
// from a board of its catalogue.
//
// Values that only a running node has are placeholders made of the PCI address. So devices with equal values on a node
// have equal ones here, as constraints on parentUUID need.
package nodetemplate
