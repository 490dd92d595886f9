// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package demand finds the MIG profiles that a cluster asks for, and whether it asks for NVLink groups, and remembers them
// for a while. The controller writes them into a ConfigMap, and the nodes with the setting Auto read it.
//
// An object asks for every device that it could get: a restriction that the package cannot read does not restrict.
package demand
