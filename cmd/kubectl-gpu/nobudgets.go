// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build nobudgets

package main

import "github.com/spf13/cobra"

func addBudgets(*cobra.Command, *factory) {}
