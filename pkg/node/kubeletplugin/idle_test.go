// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestWatchIdle_NoCalls_FreesMemoryEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		freed := 0
		p := &Plugin{o: Options{Idle: func() { freed++ }}, calls: newCalls(nil, nil)}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.watchIdle(ctx)
		expect := func(want int, after time.Duration) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if freed != want {
				t.Errorf("memory is freed %d times, want %d", freed, want)
			}
		}
		expect(1, idleAfter+time.Second)
		expect(1, 50*time.Second)
		expect(2, 10*time.Second)
		p.calls.count.Add(1)
		expect(2, idleAfter)
		expect(3, idleAfter)
		expect(3, 50*time.Second)
	})
}
