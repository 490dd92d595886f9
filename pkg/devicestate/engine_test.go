// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"os"
	"strings"
	"testing"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/devicestate"
)

func TestOpen_NoStateDirectory_ReturnsError(t *testing.T) {
	e := devicestatetest.New(t)
	e.Must(os.WriteFile(e.Dir+"/plugin", nil, 0o600))
	if _, err := e.StartWith(hosttest.Trace().Do); err == nil || !strings.Contains(err.Error(), e.StateDir) {
		t.Errorf("Open: %v", err)
	}
	if _, err := devicestate.Open(devicestate.Options{Host: host.New(host.Options{}), Dir: "/proc/nothing"}); err == nil {
		t.Error("Open in /proc")
	}
}
