// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build nobudgets

package main

import "errors"

func addBudgets(p *program) error {
	if p.Budgets {
		return errors.New("--budgets is set, and this program was built without GPU budgets (build tag nobudgets)")
	}
	return nil
}
