// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"gpu-dra-driver/internal/boxtest"
	"gpu-dra-driver/sim/simtest"
)

func TestMain(m *testing.M) { boxtest.Main(m) }

func TestMain_Killed_LeavesNothing(t *testing.T) {
	boxtest.CheckKilled(t, func() { simtest.Root(t, "dgx-a100-40", nil) })
}
