// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package enforcement holds namespaces to their GPU budgets: each instance reviews new claims and reserves for them,
// and the leader counts the claims. pkg/cluster/budget has the account.
//
// Reviews write, so only API servers may ask for them: by a client certificate, or on a secret path (ReviewPath).
package enforcement
