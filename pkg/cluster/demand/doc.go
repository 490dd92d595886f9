// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package demand keeps the ConfigMap that has nodes publish the devices which the cluster asks for: MIG profiles,
// groups, shares and monitor devices. It chooses the nodes that publish them. pkg/wire/demand has the ConfigMap.
//
// It ends in part once the scheduler indexes devices (docs/design/exits.md).
package demand
