// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// eachGPU works on GPUs, at once where there are several: partitioning one takes a second, and eight must not take
// eight. Work on one GPU does not end because another's failed.
func (e *Engine) eachGPU(p plan.Plan, work func(address string) error) error {
	return host.Parallel(e.o.Host, p.HeldGPUs(), work)
}

// eachStep goes through a GPU's steps in order, up to the first error.
func (e *Engine) eachStep(p plan.Plan, address string, others coTenants, do func(i int, x Executor, w plan.Work) error) error {
	for i := range p.Steps {
		if err := e.step(p, i, address, others, do); err != nil {
			return err
		}
	}
	return nil
}

// step calls do with a step of a GPU. It does nothing for a step of another GPU.
func (e *Engine) step(p plan.Plan, i int, address string, others coTenants, do func(i int, x Executor, w plan.Work) error) error {
	step := p.Steps[i]
	if step.PCIAddress != address {
		return nil
	}
	x, ok := e.o.Executors[step.Executor]
	var cause error
	switch {
	case !ok:
		cause = fmt.Errorf("this version of the driver has no %q", step.Executor)
	case step.Device < 0 || step.Device >= len(p.Devices):
		cause = fmt.Errorf("the claim's record has %d devices and a step for number %d", len(p.Devices), step.Device)
	default:
		return do(i, x, plan.Work{Step: step, Devices: p.Devices, OnGPU: others[address]})
	}
	return &claimerror.Error{
		Reason: claimerror.HostFailure, Attempt: "work on GPU " + address, Claim: p.Claim.String(), Cause: cause,
		Remedy: "install the version that prepared the claim, or a later one; nothing of the claim is forgotten until then",
	}
}

// coTenants are the devices of other claims on GPUs whose effects of this boot may be there, by PCI address.
type coTenants map[string][]plan.CoTenant

// coTenants finds them for the GPUs that a plan has steps on. The GPUs' locks are held, so nothing of it changes meanwhile.
func (e *Engine) coTenants(p plan.Plan, boot string, locks gpuLocks) (coTenants, error) {
	out := coTenants{}
	for _, step := range p.Steps {
		address := step.PCIAddress
		if _, known := out[address]; known || locks[address] == nil {
			continue
		}
		out[address] = nil
		_, err := e.others(locks[address], address, boot, p.Claim.UID, func(_ string, r record.Record, err error) error {
			switch {
			case errors.Is(err, record.ErrUnreadable):
				return nil // An unreadable record keeps new claims away, and cannot keep this one from ending.
			case err != nil:
				return err
			case r.State == record.Unknown || r.BootID != boot:
				return nil
			}
			for _, d := range r.Plan.Devices {
				out[address] = append(out[address],
					plan.CoTenant{Claim: r.Plan.Claim, Device: d, Committed: r.State == record.Committed})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// checkSteps says whether the effects of a committed plan are there.
func (e *Engine) checkSteps(ctx context.Context, p plan.Plan) error {
	return e.eachGPU(p, func(address string) error {
		return e.eachStep(p, address, nil, func(_ int, x Executor, w plan.Work) error { return x.Check(ctx, w) })
	})
}

// undo removes the spec, so that no container can start, then the effects of the steps that may have changed something,
// in reverse.
func (e *Engine) undo(ctx context.Context, p plan.Plan, changed []bool, others coTenants) error {
	if err := e.o.Specs.Remove(p.Claim.UID); err != nil {
		return err
	}
	return e.eachGPU(p, func(address string) error {
		for i := len(p.Steps) - 1; i >= 0; i-- {
			if !changed[i] {
				continue
			}
			err := e.step(p, i, address, others, func(_ int, x Executor, w plan.Work) error { return x.Revert(ctx, w) })
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// undoRecord undoes a record's plan. Effects of an earlier boot ended with it. Claim and GPU locks are held.
func (e *Engine) undoRecord(ctx context.Context, r record.Record, boot string, locks gpuLocks) error {
	others, err := e.coTenants(r.Plan, boot, locks)
	if err != nil {
		return err
	}
	return e.undo(ctx, r.Plan, slices.Repeat([]bool{r.BootID == boot}, len(r.Plan.Steps)), others)
}
