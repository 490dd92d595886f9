// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/claimerror"
)

// claimWork works on claims concurrently, so that one on a hanging GPU does not delay the others. The zero value is
// ready.
type claimWork struct {
	mu      sync.Mutex
	running map[string]Finding
	ended   []Finding
}

// each calls work, guarded, for the claim of each finding, and waits up to the limit. Longer work continues: a later
// call returns its finding, and does not begin work on its claim again. It returns the findings with results, by UID.
func (w *claimWork) each(
	ctx context.Context, h *host.Host, limit time.Duration, findings []Finding, work func(context.Context, *Finding) error,
) []Finding {
	var pass sync.WaitGroup
	for _, f := range findings {
		if !w.begin(f) {
			continue
		}
		do := func() {
			f.Err = host.Guard(func() error { return work(ctx, &f) })
			w.end(f)
		}
		if h.Ordered() {
			do()
		} else {
			pass.Go(do)
		}
	}
	ended := make(chan struct{})
	go func() {
		pass.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(limit):
	case <-ctx.Done():
	}
	return w.results(limit)
}

func (w *claimWork) begin(f Finding) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running == nil {
		w.running = map[string]Finding{}
	}
	_, runs := w.running[f.Claim.UID]
	if !runs {
		w.running[f.Claim.UID] = f
	}
	return !runs
}

func (w *claimWork) end(f Finding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, f.Claim.UID)
	if f.Did != "" || f.Err != nil {
		w.ended = append(w.ended, f)
	}
}

// results returns the findings of ended work, once, and of work in progress.
func (w *claimWork) results(limit time.Duration) []Finding {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.ended
	w.ended = nil
	for _, f := range w.running {
		f.Err = &claimerror.Error{
			Reason: claimerror.Interrupted, Attempt: "recovery", Claim: f.Claim.String(),
			Cause:  fmt.Errorf("it has not ended after %s, and continues", limit),
			Remedy: "claims of other GPUs are not affected; if it persists, run nvidia-smi on the node and reset the GPU that hangs",
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Finding) int { return cmp.Compare(a.Claim.UID, b.Claim.UID) })
	return out
}
