// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !nopodshares

package main

import (
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"gpu-dra-driver/pkg/cluster/podshares"
)

// addPodShares adds the claim templates of pods that ask for a share without a claim.
func addPodShares(p *program) error {
	if !p.PodShares {
		return nil
	}
	return p.Add(manager.RunnableFunc(podshares.New(p.client, p.control, podshares.Options{
		Driver: p.DriverName,
		Grace:  p.ClassGrace,
		Events: p.recorder,
	}).Run))
}
