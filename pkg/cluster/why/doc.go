// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package why explains whether the scheduler can allocate the claims of a pod, and which change would let it.
//
// The scheduler's own allocator decides, for one node of each shape, with the objects of the cluster as they are. If it
// says no, it is asked again with one thing relaxed: a claim gone, a taint tolerated, a selector dropped. Each
// relaxation that turns no into yes is a cure, so reasons and cures are true as far as the given objects are. The
// package only reads objects and never calls an API server. Trap: the allocator takes long if it must try many
// combinations; each question has a time limit, and the answer says where it is undecided.
package why
