// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package importrule is the direction of imports, as a test: a package imports from lower layers only.
package importrule
