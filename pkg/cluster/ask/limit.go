// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"errors"
	"runtime"
	"time"
)

// ErrProcessorTime is the cause of the end of a context whose goroutine has used up its processor time.
var ErrProcessorTime = errors.New("the processor time of the search is used up")

// WithProcessorTime returns a context that ends once the calling goroutine has computed for so long. Time without a
// processor does not count, so a busy machine gives the same answers as an idle one. Only Linux counts it; elsewhere
// all time counts. The goroutine keeps its thread until it calls cancel.
func WithProcessorTime(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	runtime.LockOSThread()
	ctx, cancel := withTimeOf(ctx, limit, threadClock())
	return ctx, func() {
		cancel(nil)
		runtime.UnlockOSThread()
	}
}

// withTimeOf returns a context that ends after a time of the clock, which is never faster than the time of the wall.
func withTimeOf(
	ctx context.Context, limit time.Duration, clock func() time.Duration,
) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if limit <= 0 {
		cancel(ErrProcessorTime)
		return ctx, cancel
	}
	end := clock() + limit
	go func() {
		for left := limit; left > 0; left = end - clock() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(left, time.Millisecond)):
			}
		}
		cancel(ErrProcessorTime)
	}()
	return ctx, cancel
}
