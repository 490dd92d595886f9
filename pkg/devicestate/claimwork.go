// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
)

// claimWork is work on claims, by UID. It is concurrent, so that a claim on a hanging GPU does not delay the others.
type claimWork = host.Attempts[Finding]

// eachClaim calls do for the claim of each finding, and waits up to the limit. Longer work continues: a later call
// returns its finding, and does not begin work on its claim again. It returns the findings with results, by UID.
func (e *Engine) eachClaim(
	ctx context.Context, w *claimWork, limit time.Duration, findings []Finding, do func(context.Context,
		*Finding) error,
) []Finding {
	claims := map[string]Finding{}
	for _, f := range findings {
		claims[f.Claim.UID] = f
	}
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ended, running := w.Each(wait, claims, func(f *Finding) error {
		ctx, cancel := e.limited(ctx)
		defer cancel()
		return do(ctx, f)
	})
	var out []Finding
	for _, a := range ended {
		if a.Item.Err = a.Err; a.Err != nil || a.Item.Did != "" {
			out = append(out, a.Item)
		}
	}
	for _, f := range running {
		f.Err = &claimerror.Error{
			Reason: claimerror.Interrupted, Attempt: "recovery", Claim: f.Claim.String(), UID: f.Claim.UID,
			Cause:  fmt.Errorf("it has not ended after %s, and continues", limit),
			Remedy: "claims of other GPUs are not affected; " + ifItHangs,
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Finding) int { return cmp.Compare(a.Claim.UID, b.Claim.UID) })
	return out
}

// ifItHangs is the remedy of an administrator for a GPU that hangs.
const ifItHangs = "if it persists, run nvidia-smi on the node, and reset the GPU that hangs or reboot the node"

// gpuWork is the work of a plan on one GPU.
type gpuWork struct {
	address string
	plan    plan.Plan
}

// eachGPU calls work for each GPU, concurrently because creating a partition takes a second. A failure on one GPU does
// not stop the work on others. Nor does a call that hangs, of NVML or in nvidia-smi: after the context and a grace
// period the GPU has an error. Its work then keeps the GPU's lock, and nothing else, until it ends. Work gets a plan of
// its own, of which eachGPU takes over the GPU's devices. The caller holds the locks.
func (e *Engine) eachGPU(
	ctx context.Context, p plan.Plan, locks gpuLocks, work func(p plan.Plan, address string) error,
) error {
	if e.o.Host.Ordered() { // The hook may end the process in the middle.
		for _, address := range p.HeldGPUs() {
			if err := host.Guard(func() error { return work(p, address) }); err != nil {
				return err
			}
		}
		return nil
	}
	var errs []error
	gpus := map[string]gpuWork{}
	for _, address := range p.HeldGPUs() {
		if locks[address].hangs {
			errs = append(errs, hangs(p, address))
			continue
		}
		locks[address].users.Add(1)
		own := p
		own.Devices = slices.Clone(p.Devices)
		gpus[address] = gpuWork{address, own}
	}
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(e.o.Grace, cancel) })()
	var all host.Attempts[gpuWork]
	ended, running := all.Each(patient, gpus, func(w *gpuWork) error {
		defer locks[w.address].done()
		return work(w.plan, w.address)
	})
	for _, a := range ended {
		errs = append(errs, a.Err)
		for i, d := range a.Item.plan.Devices {
			if d.PCIAddress == a.Item.address {
				p.Devices[i] = d
			}
		}
	}
	for _, w := range running {
		locks[w.address].hangs = true
		e.mark(func() { e.pending = true })
		errs = append(errs, hangs(p, w.address))
	}
	return errors.Join(errs...)
}

// hangs is the error of a claim's work on a GPU that goes on after its limit.
func hangs(p plan.Plan, address string) error {
	return &claimerror.Error{
		Reason:  claimerror.Interrupted,
		Attempt: "work on GPU " + address,
		Claim:   p.Claim.String(),
		Device:  nameAt(p, address),
		Cause:   errHangs,
		Remedy: "the operation is retried once that call ends, and claims of other GPUs are not affected; " +
			ifItHangs,
	}
}

var errHangs = errors.New("the GPU hangs: a call of NVML, or nvidia-smi, has not ended, and keeps the GPU's lock")
