// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package ask

import "time"

func threadClock() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}
