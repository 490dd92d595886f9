// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/demos"
	"gpu-dra-driver/test/e2e/env"
)

func TestFaults_Demos_ExistWithOnePod(t *testing.T) {
	tree, err := demos.Tree()
	if err != nil {
		t.Fatal(err)
	}
	all, err := demos.List(tree)
	if err != nil {
		t.Fatal(err)
	}
	for name := range faults {
		i := slices.IndexFunc(all, func(d env.Demo) bool { return d.Name == name })
		if i < 0 || all[i].Pods != 1 || all[i].Steps != nil {
			t.Errorf("%s must be a demo of one pod without steps", name)
		}
	}
	if _, err := named(all, []string{"one-gpu", "no-such-demo"}); err == nil {
		t.Error("a demo that does not exist was found")
	}
	if some, err := named(all, []string{"pack", "one-gpu"}); err != nil || len(some) != 2 || some[0].Name != "pack" {
		t.Errorf("got %v, %v", some, err)
	}
}

func TestAddressOf_DeviceName_FindsItsGPU(t *testing.T) {
	state := &engine.State{GPUs: []engine.GPU{{Address: "0000:1b:00.0"}, {Address: "0000:43:00.0"}}}
	if got, err := addressOf(state, "gpu-0000-43-00-0"); err != nil || got != "0000:43:00.0" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := addressOf(state, "gpu-0000-52-00-0"); err == nil {
		t.Error("an unknown device was found")
	}
}
