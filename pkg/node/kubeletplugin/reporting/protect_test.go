// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"testing"

	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/devicestate"
)

func TestProtect_Panic_IsCounted(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	Protect(e.Metrics, func() { var none []devicestate.PreparedDevice; _ = none[0] })
	e.Metric(`gpu_dra_background_errors_total{reason="InternalFault"} 1`)
}
