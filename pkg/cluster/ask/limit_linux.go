// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadClock returns the clock of the processor time of the calling thread. All threads of the process can read it.
func threadClock() func() time.Duration {
	// Linux builds the clock of a thread from its number: CPUCLOCK_SCHED is 2, CPUCLOCK_PERTHREAD_MASK is 4.
	clock, began := int32(^unix.Gettid()<<3|2|4), time.Now()
	return func() time.Duration {
		var at unix.Timespec
		if unix.ClockGettime(clock, &at) != nil {
			return time.Since(began)
		}
		return time.Duration(at.Nano())
	}
}
