// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command images builds the project's container images as tarballs that
// `docker load`, `kind load image-archive` and `ctr images import` take,
// without Docker and without a base image: every file comes from this
// repository's Go modules or, for a binary that links glibc, from the C library
// of the building machine.
//
//	go -C deployments run ./images --out "$PWD/dist/images" --version v0.1.0
//
// Beside each tarball lies the list of what is in it (SBOM), as CycloneDX in JSON: the image's files with their digests, and
// the Go modules in its binaries.
//
// The output is reproducible: same sources, Go and C library, same bytes. Times
// are zero, entries sorted, owners root, paths trimmed from binaries.
//
// Traps: an image that links glibc runs on any kernel but carries the building
// machine's C library, and what its nvidia-cdi-hook runs on is the node's C
// library, since hooks are executed there; build on the oldest distribution to
// be supported. The Dockerfiles beside this file build the same images for a
// pipeline that has Docker; a test holds the two to the same paths.
package main
