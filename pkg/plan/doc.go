// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan turns an allocated claim into what must be done for it on this node: a plain value, the same for the
// same claim and hardware, with a stable JSON form that records keep.
//
// A plan holds identities (PCI address, UUID), from which every effect can be found again, and the few facts that
// belong to one boot (the minor number), which a plan made after a reboot replaces.
package plan
