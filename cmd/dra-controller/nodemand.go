// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build nodemand

package main

import "errors"

func addDemand(p *program) error {
	if p.DemandConfigMap != "" {
		return errors.New("--demand-configmap is set, and this program was built without demand (build tag nodemand)")
	}
	return nil
}
