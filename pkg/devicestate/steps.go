// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"

	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// eachGPU works on GPUs, at once where there are several: cutting one takes a second, and eight must not take eight.
// Work on one GPU does not end because another's failed.
func (e *Engine) eachGPU(addresses []string, work func(address string) error) error {
	if e.InTurn || len(addresses) < 2 {
		for _, address := range addresses {
			if err := work(address); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, len(addresses))
	var group sync.WaitGroup
	for i, address := range addresses {
		group.Go(func() { errs[i] = work(address) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// eachStep goes through a GPU's steps in order, up to the first error.
func (e *Engine) eachStep(p plan.Plan, address string, beside beside, do func(i int, x Executor, w plan.Work) error) error {
	for i, step := range p.Steps {
		if step.PCIAddress != address {
			continue
		}
		x, err := e.executor(p, step)
		if err == nil {
			err = do(i, x, plan.Work{Step: step, Devices: p.Devices, Others: beside[address]})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// beside are the other claims on GPUs whose effects of this boot may be there, by PCI address.
type beside map[string][]plan.Other

// beside finds them for the GPUs that a plan has steps on. The GPUs' locks are held, so nothing of it changes meanwhile.
func (e *Engine) beside(p plan.Plan, boot string, locks gpuLocks) (beside, error) {
	out := beside{}
	for _, step := range p.Steps {
		if _, known := out[step.PCIAddress]; known || locks[step.PCIAddress] == nil {
			continue
		}
		out[step.PCIAddress] = nil
		_, uids, err := e.noted(locks[step.PCIAddress], step.PCIAddress, boot)
		if err != nil {
			return nil, err
		}
		for _, uid := range uids {
			if uid == p.Claim.UID {
				continue
			}
			r, err := e.records.Get(uid)
			switch {
			case errors.Is(err, fs.ErrNotExist), errors.Is(err, record.ErrUnreadable):
				continue // One that nobody can read keeps new claims away, and cannot keep this one from ending.
			case err != nil:
				return nil, err
			case r.State == record.Unknown || r.BootID != boot || !slices.Contains(r.Plan.Exclusive(), step.PCIAddress):
				continue
			}
			out[step.PCIAddress] = append(out[step.PCIAddress], plan.Other{Plan: r.Plan, Committed: r.State == record.Committed})
		}
	}
	return out, nil
}

func (e *Engine) executor(p plan.Plan, step plan.Step) (Executor, error) {
	x, ok := e.Executors[step.Executor]
	if !ok {
		return nil, e.noExecutor(p, step)
	}
	if step.Device < 0 || step.Device >= len(p.Devices) {
		return nil, e.noDevice(p, step)
	}
	return x, nil
}

// check says whether the effects of a committed plan are there.
func (e *Engine) check(ctx context.Context, p plan.Plan) error {
	return e.eachGPU(p.Exclusive(), func(address string) error {
		return e.eachStep(p, address, nil, func(_ int, x Executor, w plan.Work) error { return x.Check(ctx, w) })
	})
}

// undo removes the spec, so that nothing new can start, then in reverse the effects of those steps that are touched.
func (e *Engine) undo(ctx context.Context, p plan.Plan, touched []bool, beside beside) error {
	if err := e.Specs.Remove(p.Claim.UID); err != nil {
		return err
	}
	return e.eachGPU(p.Exclusive(), func(address string) error {
		for i := len(p.Steps) - 1; i >= 0; i-- {
			step := p.Steps[i]
			if step.PCIAddress != address || !touched[i] {
				continue
			}
			x, err := e.executor(p, step)
			if err == nil {
				err = x.Revert(ctx, plan.Work{Step: step, Devices: p.Devices, Others: beside[address]})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// all are the steps of a plan whose effects may be there: of an earlier boot, none is.
func all(p plan.Plan, alive bool) []bool {
	touched := make([]bool, len(p.Steps))
	for i := range touched {
		touched[i] = alive
	}
	return touched
}
