// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build nopodshares

package main

import "errors"

func addPodShares(p *program) error {
	if p.PodShares {
		return errors.New("--pod-shares is set, and this program was built without it (build tag nopodshares)")
	}
	return nil
}
