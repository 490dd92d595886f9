// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command images builds the project's container images without Docker and without a base image. Every file comes from
// Go modules or, for a binary that links glibc, from Debian packages of the building machine.
//
//	go -C deployments run ./images --out "$PWD/dist" --version 0.1.0 --arch amd64,arm64 --key release.key
//
// An image is an OCI layout with an index of its platforms. For `docker load`, `kind load image-archive` and
// `ctr images import` there is a tarball too, with the platform of this machine. Each platform has a list of its parts
// (SBOM), as SPDX in JSON: the files with their digests, the Go modules in the binaries, the Debian packages. The
// licence texts of all parts are in the image, in /licenses. A signature has the format of cosign.
//
// The output is reproducible: same sources, Go and C library, same bytes. Times are zero, entries sorted, owners root,
// paths trimmed from binaries. Signatures need no random numbers.
//
// Traps: an image that links glibc runs on any kernel and contains the building machine's C library. nvidia-cdi-hook is
// static, because the node runs hooks and can have an older C library or none. The C library of a foreign architecture comes from Debian's package for cross compilers, which gets no security updates.
// The Dockerfile in this directory runs this program in Docker.
package main
