// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package tools holds the module of the project's command-line tools. It is
// separate from the driver's module, so that a tool's dependency cannot raise a
// version that ships.
//
// The tools are the `tool` directives of go.mod. Run one with
// `hack/tool.sh NAME ARGS`, which builds it once into the cache, or with
// `go -C tools tool NAME`.
package tools
