// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !nodemand

package main

import (
	"context"

	"gpu-dra-driver/pkg/node/demand"
)

// newDemand follows the cluster's demand; it returns nil if no controller publishes it.
func newDemand(ctx context.Context, n *node) follower {
	if n.DemandConfigMap == "" {
		return nil
	}
	return demand.New(ctx, n.client, n.DriverName, n.PodNamespace, n.DemandConfigMap, n.NodeName, n.events, n.changed)
}
