// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package admission reviews what people write: ResourceClaims, ResourceClaimTemplates and DeviceClasses.
//
// A review denies what is wrong whatever the cluster looks like: parameters that Prepare would refuse, by Prepare's own
// code, and class selectors that fail on some device and with it every allocation that meets that device. It warns of
// what the cluster as it is cannot give: it can change, and the object is then right. Reviews read a ClusterView and change
// nothing; traps: specs of claims never change, so a claim is reviewed once, when it is made.
package admission
