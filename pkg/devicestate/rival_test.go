// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"testing"

	"gpu-dra-driver/pkg/claimerror"
)

func TestWhatADevicePluginServesIsNotPrepared(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	served := ""
	p.Rival = func(at string) string {
		if at == served {
			return "nvidia.com/gpu"
		}
		return ""
	}
	w.claim("a", 1)
	w.prepare(p, "a")
	served = address(1)
	w.prepare(p, "a") // What stands, stands.
	w.must(p.Unprepare(context.Background(), claimOf("a")))
	w.refused(p, "a", claimerror.Transient, claimerror.DeviceInUse, "gpu-0000-11-00-0", "device plugin", "nvidia.com/gpu", "remove the device plugin")
	w.claim("b", 0, 1)
	w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "device plugin")
	w.clean(p)
	w.claim("watches", -2)
	w.prepare(p, "watches")
	w.clean(p, "watches")
	served = ""
	w.prepare(p, "a")
	w.clean(p, "a", "watches")
}
