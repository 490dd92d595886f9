// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package tools holds the module of the command-line tools this project is
// built and checked with, apart from the driver's own module so that no tool's
// dependency can raise a version that ships.
//
// The tools are the `tool` directives of go.mod. Run one with
// `hack/tool.sh NAME ARGS`, which builds it once into the cache, or with
// `go -C tools tool NAME`.
package tools
