// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package admission reviews ResourceClaims, ResourceClaimTemplates and DeviceClasses.
//
// A review denies objects that are wrong in any cluster. It checks parameters with Prepare's own code, and denies class
// selectors that fail on a device, because they end every allocation that reaches it. It warns of requests that the
// cluster cannot satisfy now, because the cluster can change, and denies them only if the administrator wants it.
// Reviews only read a ClusterView. Trap: the spec of a claim never changes, so a claim is reviewed only at its
// creation.
package admission
