// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command release makes a release of what make images-all and make dist built, and pushes it to a registry if one is named.
//
//	go -C deployments run ./release --version 1.2.3 --dist "$PWD/dist" --registry localhost:5000/team --key release.key
//
// It writes the files to publish to a directory: the charts with the digests of their images, the archives and the SBOMs. It adds the
// notes of the version from CHANGELOG.md, the provenance (an in-toto statement with SLSA's predicate), and the checksums.
// Without a registry it needs no network.
//
// In the registry a chart is an OCI artifact at charts/NAME. SBOMs and provenance refer to the images by the field
// subject (OCI 1.1). Signatures and attestations are at the tags that cosign expects.
//
// Nothing has a time of this machine: equal trees make equal releases.
package main
