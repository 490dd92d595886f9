// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build nodemand

package main

import "context"

// newDemand returns nil: the node publishes all devices.
func newDemand(context.Context, *node) follower { return nil }
