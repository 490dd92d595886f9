// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Prepare makes an allocated claim usable by containers and answers once that survives a crash. It may be called again
// at any time and then verifies and repairs. A claim that holds no device of this driver gives none. Errors are
// *claimerror.Error; after one, nothing is left of what this call began, or a record says what is.
func (e *Engine) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]PreparedDevice, error) {
	p := plan.Plan{Claim: plan.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}}
	fail := func(err error) ([]PreparedDevice, error) { return nil, e.failure(ctx, "prepare", p, err) }
	if !record.ValidUID(p.Claim.UID) {
		return fail(e.badUID(p))
	}
	lock, err := e.lockClaim(ctx, p.Claim.UID)
	if err != nil {
		return fail(err)
	}
	defer lock.Release()

	old, found, err := e.current(p.Claim)
	if err != nil {
		return fail(err)
	}
	node := e.node()
	if found && (old.State == record.Committed || old.State == record.Intent && old.Renews != "") {
		node.Prepared = old.Plan
	}
	if p, err = e.Planner(claim, node); err != nil {
		return nil, err
	}
	locks, err := e.lockGPUs(ctx, union(p.Exclusive(), old.Plan.Exclusive()))
	if err != nil {
		return fail(err)
	}
	defer locks.release()
	// The wait for the locks can outlast the caller's patience.
	if ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	boot, err := e.Host.BootID()
	if err != nil {
		return fail(err)
	}
	if found && old.State == record.Unknown && len(p.Devices) > 0 {
		if old, err = e.adopt(p, boot, locks); err != nil {
			return fail(err)
		}
	}
	if found && old.State == record.Intent && old.Renews != "" && old.Plan.Allocation == p.Allocation {
		if old, err = e.giveBack(ctx, old, boot, locks); err != nil {
			return fail(err)
		}
	}
	if found && !(old.State == record.Committed && old.Plan.Allocation == p.Allocation) {
		// Begun, half undone, or of another allocation: whatever it is, it is not what is wanted now.
		if err := e.release(ctx, old, boot, locks); err != nil {
			return fail(fmt.Errorf("undo what an earlier attempt left: %w", err))
		}
		found = false
	}
	if len(p.Devices) == 0 {
		return nil, nil
	}
	if !found && p.Refused != nil {
		return fail(p.Refused)
	}
	if !found {
		if err := e.served(p); err != nil {
			return fail(err)
		}
	}
	if err := e.claimGPUs(p, boot, locks, found); err != nil {
		return fail(err)
	}
	// A claim that stands keeps its steps, which the node's settings may plan otherwise today.
	effects := p
	if found {
		effects.Steps = append(slices.Clone(p.Steps), old.Plan.Steps...)
	}
	beside, err := e.beside(effects, boot, locks)
	if err != nil {
		return fail(err)
	}
	if !found {
		p, err = e.carryOut(ctx, p, boot, nil, beside)
	} else {
		p, err = e.carryOut(ctx, p, boot, &old, beside)
	}
	if err != nil {
		return fail(err)
	}
	return e.Devices(p), nil
}

// adopt gives a claim whose record was lost the one that its allocation calls for. Its effects may exist and be in use.
// A partition that stands where the claim's would may as well be an administrator's, so it is never destroyed.
func (e *Engine) adopt(p plan.Plan, boot string, locks gpuLocks) (record.Record, error) {
	if err := e.claimGPUs(p, boot, locks, true); err != nil {
		return record.Record{}, err
	}
	beside, err := e.beside(p, boot, locks)
	if err != nil {
		return record.Record{}, err
	}
	p.Devices = slices.Clone(p.Devices)
	snapshot := e.Snapshot()
	for i, d := range p.Devices {
		g, _ := snapshot.ByAddress(d.PCIAddress)
		_, there := g.MIG.At(d.Partition.Profile, d.Partition.Start)
		p.Devices[i].Partition.Foreign = there && d.Kind == gpu.KindMIG
		for _, s := range (plan.Work{Step: plan.Step{Device: i}, Devices: p.Devices, Others: beside[d.PCIAddress]}).Sharers() {
			if s.Committed {
				p.Devices[i].Partition = s.Device.Partition
			}
		}
	}
	r := record.Record{State: record.Committed, BootID: boot, Plan: p}
	return r, e.records.Put(r)
}

// carryOut makes the plan's effects, its spec and, unless old is that already, its commit; it gives the plan with what
// the effects turned out to be. An error undoes them, except where old is a commit of this boot: then a container may be
// running on them, and a later call repairs. A commit of an earlier boot stays what it was, so that its devices stay the
// claim's.
func (e *Engine) carryOut(ctx context.Context, p plan.Plan, boot string, old *record.Record, beside beside) (plan.Plan, error) {
	p.Devices = slices.Clone(p.Devices)
	standing := old != nil && old.BootID == boot
	if standing {
		// What was carried out is what may be in use; a later version of the driver may plan other steps.
		p.Steps = old.Plan.Steps
		for i := range min(len(p.Devices), len(old.Plan.Devices)) {
			p.Devices[i].Partition = old.Plan.Devices[i].Partition
			p.Devices[i].Share, p.Devices[i].Sharing = old.Plan.Devices[i].Share, old.Plan.Devices[i].Sharing
			p.Devices[i].Told = old.Plan.Devices[i].Told
		}
	} else {
		if err := e.admit(ctx, p, beside); err != nil {
			return p, err
		}
		if len(p.Steps) > 0 {
			intent := record.Record{State: record.Intent, BootID: boot, Plan: p}
			if old != nil {
				intent.Renews = old.BootID
			}
			if err := e.records.Put(intent); err != nil {
				return p, err
			}
		}
	}
	touched, err := e.apply(ctx, p, boot, beside)
	for range p.Steps {
		if !standing || !errors.Is(err, plan.ErrVanished) {
			break
		}
		// The record goes first: after a crash it must own what is about to be made, which has another identity.
		if err = e.records.Put(record.Record{State: record.Committed, BootID: boot, Plan: p}); err == nil {
			_, err = e.apply(ctx, p, boot, beside)
		}
	}
	if err == nil {
		// The caller's patience is the last thing to check before it becomes binding.
		err = context.Cause(ctx)
	}
	if err == nil && standing && same(old.Plan, p) {
		return p, e.records.Confirm()
	}
	if err == nil {
		err = e.records.Put(record.Record{State: record.Committed, BootID: boot, Plan: p})
	}
	if err == nil || standing {
		return p, err
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	undoErr := e.undo(undo, p, touched, beside)
	switch {
	case undoErr != nil:
	case old != nil:
		undoErr = e.records.Put(*old)
	default:
		undoErr = e.records.Remove(p.Claim.UID)
	}
	if undoErr != nil {
		return p, errors.Join(err, fmt.Errorf("undo: %w", undoErr))
	}
	return p, err
}

// admit looks at the GPUs before anything is recorded.
func (e *Engine) admit(ctx context.Context, p plan.Plan, beside beside) error {
	return e.eachGPU(p.Exclusive(), func(address string) error {
		for i, d := range p.Devices {
			if d.PCIAddress == address && d.Whole() && !d.Admin {
				if err := e.Whole(ctx, &p.Devices[i]); err != nil {
					return err
				}
			}
		}
		return e.eachStep(p, address, beside, func(_ int, x Executor, w plan.Work) error { return x.Admit(ctx, w) })
	})
}

// apply makes effects and spec true; it changes nothing where they are. It says which steps may have changed something.
func (e *Engine) apply(ctx context.Context, p plan.Plan, boot string, beside beside) (touched []bool, err error) {
	touched = make([]bool, len(p.Steps))
	err = e.eachGPU(p.Exclusive(), func(address string) error {
		return e.eachStep(p, address, beside, func(i int, x Executor, w plan.Work) error {
			err := x.Apply(ctx, w)
			touched[i] = !errors.Is(err, plan.ErrUntouched)
			return err
		})
	})
	if err != nil {
		return touched, err
	}
	return touched, e.writeSpec(ctx, p, boot)
}

func (e *Engine) writeSpec(ctx context.Context, p plan.Plan, boot string) error {
	data, err := e.spec(ctx, p, boot)
	if err != nil {
		return err
	}
	for _, d := range p.Devices {
		if d.Told.NCCLTopology != "" { // Before what mounts it.
			if err := e.Specs.WriteTopology(p.Claim.UID, []byte(d.Told.NCCLTopology)); err != nil {
				return err
			}
		}
	}
	return e.Specs.Write(p.Claim.UID, data)
}

func (e *Engine) spec(ctx context.Context, p plan.Plan, boot string) ([]byte, error) {
	var edits cdi.Edits
	var err error
	if edits.Common, err = e.Edits.Common(ctx); err != nil {
		return nil, e.notReady(p, "", err)
	}
	for _, d := range p.Devices {
		one, err := e.Edits.GPU(ctx, d)
		if err != nil {
			return nil, e.notReady(p, d.Name, err)
		}
		one = cdi.Shared(one, d, e.MPSDir)
		edits.Devices = append(edits.Devices, cdi.Told(one, d, e.Specs.TopologyPath(p.Claim.UID)))
	}
	spec, err := cdi.Spec(e.Driver, p, boot, edits)
	if err != nil {
		return nil, e.notReady(p, "", err)
	}
	return cdi.Encode(spec)
}

// current reads the claim's record. An unreadable one is set aside and rebuilt from the spec's annotation as far as
// that goes; what the claim itself says comes from the caller.
func (e *Engine) current(c plan.Claim) (record.Record, bool, error) {
	r, err := e.records.Get(c.UID)
	switch {
	case err == nil:
		return r, true, nil
	case errors.Is(err, fs.ErrNotExist):
		return record.Record{}, false, nil
	case !errors.Is(err, record.ErrUnreadable):
		return record.Record{}, false, err
	}
	r, err = e.rebuild(c.UID, err)
	return r, err == nil, err
}

// Devices are a plan's, as Prepare answers them: a group is one.
func (e *Engine) Devices(p plan.Plan) []PreparedDevice {
	out := make([]PreparedDevice, 0, len(p.Devices))
	for i, d := range p.Devices {
		if p.Continues(i) {
			group := &out[len(out)-1]
			group.Members = append(group.Members, d)
			continue
		}
		out = append(out, PreparedDevice{Device: d, CDIDeviceID: cdi.DeviceID(e.Driver, p, i)})
		if d.Kind == gpu.KindGroup {
			out[len(out)-1].Members = []plan.Device{d}
		}
	}
	return out
}

func (e *Engine) badUID(p plan.Plan) error {
	return &claimerror.Error{
		Reason: claimerror.InvalidAllocation, Attempt: "prepare", Claim: p.Claim.String(),
		Cause: fmt.Errorf("its UID %q is not one that an API server gives", p.Claim.UID), Remedy: "create the claim anew",
	}
}

func (e *Engine) notReady(p plan.Plan, device string, cause error) error {
	return &claimerror.Error{
		Reason: claimerror.DriverNotReady, Attempt: "prepare", Claim: p.Claim.String(),
		Device: device, Cause: cause, Remedy: "it is retried; check the driver installation on the node (nvidia-smi must work there)",
	}
}

func same(a, b plan.Plan) bool {
	return slices.Equal(a.Devices, b.Devices) &&
		slices.EqualFunc(a.Steps, b.Steps, func(x, y plan.Step) bool {
			return x.Executor == y.Executor && x.PCIAddress == y.PCIAddress && string(x.Spec) == string(y.Spec)
		})
}

func union(a, b []string) []string {
	all := append(slices.Clone(a), b...)
	slices.Sort(all)
	return slices.Compact(all)
}
