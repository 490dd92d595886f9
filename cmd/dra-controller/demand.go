// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !nodemand

package main

import (
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"gpu-dra-driver/pkg/cluster/demand"
)

// addDemand adds the ConfigMap with the devices that the cluster asks for.
func addDemand(p *program) error {
	if p.DemandConfigMap == "" {
		return nil
	}
	return p.Add(manager.RunnableFunc(demand.New(p.client, p.control, demand.Options{
		Driver:          p.DriverName,
		ConfigMap:       p.DemandConfigMap,
		Namespace:       p.PodNamespace,
		SharesOnDemand:  p.SharesOnDemand,
		MaxServingNodes: p.MaxServingNodes,
		Grace:           p.ClassGrace,
		Events:          p.recorder,
	}).Run))
}
