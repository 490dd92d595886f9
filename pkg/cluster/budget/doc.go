// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package budget counts the GPUs of claims against the budget of their namespace. Counter returns the charge of a
// claim: at its creation by the largest devices that it could get, later by the allocated ones. Reserve and Count
// change the status of a budget.
//
// Each change is a function from one version of a budget to the next one. The API server stores it only on top of the
// version that the function read, so that creations at the same time cannot exceed a limit together. The invariant: the
// claims that exist cost at most Status.Used. A claim can exist only after the webhook has written a reservation for
// it. The controller removes the reservation only when it counts the claim, or knows that the claim does not exist.
//
// Trap: a cache of claims can be older than the one that an earlier leader counted. Status.CountedVersion shows that.
package budget
