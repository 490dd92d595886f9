// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWithProcessorTime_Computes_EndsAfterItsOwnTime computes until the end.
func TestWithProcessorTime_Computes_EndsAfterItsOwnTime(t *testing.T) {
	const limit = 20 * time.Millisecond
	ctx, cancel := WithProcessorTime(t.Context(), limit)
	defer cancel()
	clock := threadClock()
	began := clock()
	for ctx.Err() == nil { // It computes.
	}
	if used := clock() - began; used < limit*9/10 || !errors.Is(context.Cause(ctx), ErrProcessorTime) {
		t.Errorf("it ended after %s by %v", used, context.Cause(ctx))
	}
}

// TestWithProcessorTime_WaitsOrHasNoProcessor_GoesOn has the wall's time pass without work.
func TestWithProcessorTime_WaitsOrHasNoProcessor_GoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := WithProcessorTime(t.Context(), 25*time.Millisecond)
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Errorf("it ended by %v", context.Cause(ctx))
		}
		cancel()
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("cancel ends it by %v", context.Cause(ctx))
		}
	})
}

// TestWithTimeOf_SlowClock_EndsByTheClock has a clock with a quarter of the wall's time, as on a busy machine.
func TestWithTimeOf_SlowClock_EndsByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := withTimeOf(t.Context(), 25*time.Millisecond, func() time.Duration { return time.Since(began) / 4 })
		defer cancel(nil)
		<-ctx.Done()
		if took := time.Since(began); took < 100*time.Millisecond || took > 104*time.Millisecond || !errors.Is(context.Cause(ctx), ErrProcessorTime) {
			t.Errorf("it ended after %s by %v", took, context.Cause(ctx))
		}
	})
}

func TestWithProcessorTime_NoTime_HasEnded(t *testing.T) {
	ctx, cancel := WithProcessorTime(t.Context(), 0)
	defer cancel()
	if !errors.Is(context.Cause(ctx), ErrProcessorTime) {
		t.Errorf("it ended by %v", context.Cause(ctx))
	}
}
