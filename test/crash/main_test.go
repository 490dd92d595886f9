//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"testing"

	"gpu-dra-driver/internal/boxtest"
	"gpu-dra-driver/test/e2e/env"
)

func TestMain(m *testing.M) { boxtest.Main(m) }

func TestMain_Killed_LeavesNothing(t *testing.T) {
	boxtest.CheckKilled(t, func() {
		e := newEnv(t)
		e.start()
		c, err := e.env.AllocatedClaim(t.Context(), node+"/gpu", env.Part{Device: "gpu-0000-43-00-0", Memory: "10Gi"})
		if err == nil {
			err = e.prepare(c)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}
