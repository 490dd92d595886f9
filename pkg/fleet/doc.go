// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleet is what the ResourceSlices of a whole cluster say of its GPUs, in little memory: nodes of one make
// publish the same but for what identifies a board, so what they publish is kept once, as a Shape.
package fleet
