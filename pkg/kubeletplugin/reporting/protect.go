// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"runtime/debug"

	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/metrics"
)

// Protect keeps a bug in one piece of background work from ending the plugin, on which the end of other pods depends.
// The next round tries that piece again.
func Protect(m *metrics.Metrics, work func()) {
	defer func() {
		if p := recover(); p != nil {
			klog.Background().Error(nil, "Background work met a bug of the driver", "panic", p, "stack", string(debug.Stack()))
			m.Background(claimerror.InternalFault)
		}
	}()
	work()
}
