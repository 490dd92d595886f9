// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package podshares keeps the claim templates of pods that ask for a share of a GPU without a claim.
//
// A policy of the API server (templates/podshares.yaml in the chart) gives such a pod the name of a template, and a
// label. The name has all of the content, so that two leaders write equal templates. Traps: the pod exists before its
// template, and Kubernetes tries to make its claim until then. A template cannot be changed. A user can have one of the
// same name: it stays, and the pod has an Event.
package podshares
