// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build nopreemption

package main

import "errors"

func addPreemption(p *program) error {
	if p.Preemption {
		return errors.New("--preemption is set, and this program was built without preemption (build tag nopreemption)")
	}
	return nil
}
