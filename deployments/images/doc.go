// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command images builds the project's container images as tarballs that
// `docker load`, `kind load image-archive` and `ctr images import` take,
// without Docker and without a base image. Every file comes from this
// repository's Go modules or, for a binary that links glibc, from the C library
// of the building machine.
//
//	go -C deployments run ./images --out "$PWD/dist/images" --version v0.1.0
//
// Each tarball has a list of its parts (SBOM), as CycloneDX in JSON: the image's files with their digests, and the Go modules
// in its binaries.
//
// The output is reproducible: same sources, Go and C library, same bytes. Times
// are zero, entries sorted, owners root, paths trimmed from binaries.
//
// Traps: an image that links glibc runs on any kernel and contains the building
// machine's C library. Its nvidia-cdi-hook uses the node's C library, since the
// node runs hooks: build on the oldest supported distribution. The Dockerfiles
// in this directory build the same images with Docker; a test compares them.
package main
