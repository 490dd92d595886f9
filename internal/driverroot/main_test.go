// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"testing"

	"gpu-dra-driver/internal/boxtest"
)

func TestMain(m *testing.M) { boxtest.Main(m) }

func TestMain_Killed_LeavesNothing(t *testing.T) {
	boxtest.CheckKilled(t, func() {
		newEnv(t)
	})
}
