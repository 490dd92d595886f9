// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
)

type PreparedDevice struct {
	plan.Device
	// Members are the GPUs of a group in link order, the first of which is Device; nil for other devices.
	Members []plan.Device
	// CDIDeviceID is the CDI device that the runtime injects.
	CDIDeviceID string
}

// Prepare makes an allocated claim usable by containers. It returns after the result survives a crash. A repeated call
// checks and repairs. It returns no device for a claim without devices of this driver. Errors are *claimerror.Error;
// after an error, a record describes all remaining effects.
func (e *Engine) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]PreparedDevice, error) {
	c := plan.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}
	ctx, cancel := e.limited(ctx)
	defer cancel()
	var p plan.Plan
	err := host.Guard(func() (err error) {
		p, err = e.prepare(ctx, claim, c)
		return err
	})
	e.releaseKept(ctx)
	if err != nil {
		return nil, failure(ctx, "prepare", c, err)
	}
	return e.Devices(p), nil
}

func (e *Engine) prepare(ctx context.Context, claim *resourceapi.ResourceClaim, c plan.Claim) (p plan.Plan, err error) {
	if !record.ValidUID(c.UID) {
		return p, c.Refuse("", claimerror.InvalidAllocation,
			fmt.Errorf("its UID %q cannot come from an API server", c.UID), "create the claim anew")
	}
	lock, boot, err := e.lockClaim(ctx, c.UID)
	if err != nil {
		return p, err
	}
	defer lock.Release()

	old, err := e.current(c.UID, boot)
	if err == nil && phaseOf(old, boot) == absent {
		if old, err = e.lostRecord(c.UID, boot); err == nil && phaseOf(old, boot) != absent {
			err = e.restoreLost(old)
		}
	}
	if err != nil {
		return p, err
	}
	before := phaseOf(old, boot)
	node := e.node()
	if before.prepared() || before == replacing {
		node.Prepared = old.Plan
	}
	if p, err = e.o.Planner(claim, node); err != nil {
		return p, err
	}
	if before == absent && p.Refused == nil {
		// Before the locks: a reset holds a faulty GPU's lock for a minute, and this claim can have other GPUs too.
		if err := e.refuseFaulty(p); err != nil {
			return p, err
		}
	}
	locks, err := e.lockGPUs(ctx, union(p.HeldGPUs(), old.Plan.HeldGPUs())...)
	if err != nil {
		return p, err
	}
	defer locks.release()
	// The wait for locks can exceed the caller's deadline.
	if ctx.Err() != nil {
		return p, context.Cause(ctx)
	}
	switch {
	case before == unknown && len(p.Devices) > 0:
		old, err = e.adopt(p, boot, locks)
	case before == replacing && old.Plan.SameAllocation(p):
		old, err = e.restoreCommit(ctx, old, boot, locks)
	}
	if err != nil {
		return p, err
	}
	now := phaseOf(old, boot)
	found := now.prepared() && old.Plan.SameAllocation(p)
	if now != absent && !found {
		// An unfinished record or one of another allocation is outdated.
		if err := e.release(ctx, old, boot, locks); err != nil {
			return p, fmt.Errorf("undo an earlier attempt: %w", err)
		}
		old = record.Record{}
	}
	if len(p.Devices) == 0 {
		return p, nil
	}
	if !found {
		if p.Refused != nil {
			return p, p.Refused
		}
		if err := cmp.Or(e.refuseServed(p), e.refuseFaulty(p)); err != nil {
			return p, err
		}
		p, err = e.join(p, claim, node, boot, locks)
	} else {
		if now == committed {
			p = old.Plan.Refreshed(p)
		}
		err = e.claimGPUs(p, boot, locks, true)
	}
	if err != nil {
		return p, err
	}
	others, err := e.coTenants(p, boot, locks)
	if err != nil {
		return p, err
	}
	return e.carryOut(ctx, p, boot, locks, old, others)
}

// adopt creates a record for a claim whose record was lost, from its allocation. Its effects may exist and be in use. A
// partition in the claim's place may also be external, so it is never destroyed.
func (e *Engine) adopt(p plan.Plan, boot string, locks gpuLocks) (record.Record, error) {
	if err := e.claimGPUs(p, boot, locks, true); err != nil {
		return record.Record{}, err
	}
	others, err := e.coTenants(p, boot, locks)
	if err != nil {
		return record.Record{}, err
	}
	snapshot := e.o.Scans.Snapshot()
	for i, d := range p.Devices {
		g, _ := snapshot.ByAddress(d.PCIAddress)
		found, there := g.MIG.At(d.Partition.Profile, d.Partition.Start)
		p.Devices[i].Partition.External = there && d.Kind == gpu.KindMIG
		work := plan.Work{Step: plan.Step{Device: i}, Devices: p.Devices, OnGPU: others[d.PCIAddress].devices}
		for _, t := range work.CoTenants() {
			// A claim whose release is incomplete owns the partition that is there.
			if t.Committed || there && slices.ContainsFunc(found.Devices, func(d gpu.PartitionDevice) bool {
				return d.UUID == t.Device.Partition.UUID
			}) {
				p.Devices[i].Partition = t.Device.Partition
			}
		}
	}
	r := record.Record{State: record.Committed, BootID: boot, Plan: p}
	return r, e.records.Put(r)
}

// undoTime limits the undoing of a Prepare without a caller.
const undoTime = 4 * time.Second

// carryOut applies the plan's effects, writes its spec and, unless old is this commit, the commit record. It returns
// the plan with the resulting effects. After an error it undoes them. It does not if old is a commit of this boot,
// because containers may use them; then a later call repairs. A commit of an earlier boot is restored, so that the
// claim keeps its devices.
func (e *Engine) carryOut(
	ctx context.Context, p plan.Plan, boot string, locks gpuLocks, old record.Record, others coTenants,
) (plan.Plan, error) {
	standing := phaseOf(old, boot) == committed
	if !standing {
		if err := e.admit(ctx, p, locks, others); err != nil {
			return p, err
		}
		if len(p.Steps) > 0 {
			intent := record.Record{State: record.Intent, BootID: boot, Renews: old.BootID, Plan: p}
			if err := e.records.Put(intent); err != nil {
				return p, err
			}
		}
	}
	changed, err := e.apply(ctx, p, boot, locks, others)
	for range p.Steps {
		if !standing || !errors.Is(err, plan.ErrDestroyed) {
			break
		}
		// Write the record first: after a crash it must own the effects, which get new identities.
		if err = e.commit(p, boot); err == nil {
			_, err = e.apply(ctx, p, boot, locks, others)
		}
	}
	if err == nil {
		// The caller's deadline is the last check before the commit.
		err = context.Cause(ctx)
	}
	if err == nil && standing && slices.Equal(old.Plan.Devices, p.Devices) {
		return p, e.records.Confirm()
	}
	if err == nil {
		err = e.commit(p, boot)
	}
	if standing && (errors.Is(err, plan.ErrDestroyed) || sessionpool.IsGone(err)) {
		err = e.withdrawUnchecked(p.Claim, err)
	}
	if err == nil || standing {
		return p, err
	}
	if errors.Is(err, plan.ErrDestroyed) {
		err = lostByOther(p, others, err)
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	undoErr := e.undo(undo, p, locks, changed, others)
	switch {
	case undoErr != nil:
	case phaseOf(old, boot) != absent:
		undoErr = e.records.Put(old)
	default:
		undoErr = e.records.Remove(p.Claim.UID)
	}
	if undoErr != nil && !errors.Is(err, errHangs) {
		err = errors.Join(err, fmt.Errorf("undo: %w", undoErr))
	}
	return p, err
}

// lostByOther explains the loss of a shared partition to a claim that joins it. It is not created again beside the
// processes of the claim that had it: only that claim's next Prepare or its end decides whose it is.
func lostByOther(p plan.Plan, others coTenants, err error) error {
	var lost *claimerror.Error
	if !errors.As(err, &lost) {
		return err
	}
	for _, d := range p.Devices {
		for _, t := range others[d.PCIAddress].devices {
			if d.Name != lost.Device || t.Device.Name != d.Name || !t.Committed {
				continue
			}
			return p.Claim.Refuse(d.Name, claimerror.DeviceInUse, &HeldError{Claim: t.Claim, text: fmt.Sprintf(
				"claim %s (UID %s) had this partition first, and lost it: %v", t.Claim, t.Claim.UID, lost.Cause)},
				"delete the pod of that claim, because its processes lost the partition; the kubelet retries this "+
					"one and succeeds after the release of that claim")
		}
	}
	return err
}

func (e *Engine) commit(p plan.Plan, boot string) error {
	return e.records.Put(record.Record{State: record.Committed, BootID: boot, Plan: p})
}

// admit calls the executors' Admit before anything is recorded.
func (e *Engine) admit(ctx context.Context, p plan.Plan, locks gpuLocks, others coTenants) error {
	return e.eachGPU(ctx, p, locks, func(p plan.Plan, address string) error {
		for i := range p.Devices {
			d := &p.Devices[i] // Not a copy: the work on other GPUs changes their devices meanwhile.
			if d.PCIAddress != address || d.Admin {
				continue
			}
			for _, settle := range e.o.Settle {
				if err := settle(ctx, d); err != nil {
					return err
				}
			}
		}
		return e.eachStep(p, address, others, func(_ int, x Executor, w plan.Work) error { return x.Admit(ctx, w) })
	})
}

// apply creates missing effects and the spec. It returns which steps may have changed the GPU.
func (e *Engine) apply(
	ctx context.Context, p plan.Plan, boot string, locks gpuLocks, others coTenants,
) (changed []bool, err error) {
	changed = make([]bool, len(p.Steps))
	err = e.eachGPU(ctx, p, locks, func(p plan.Plan, address string) error {
		return e.eachStep(p, address, others, func(i int, x Executor, w plan.Work) error {
			changed[i] = true // A panic can change the GPU.
			err := x.Apply(ctx, w)
			changed[i] = !errors.Is(err, plan.ErrUnchanged)
			return err
		})
	})
	if err == nil {
		err = e.withdrawReplaced(p, others)
	}
	if err != nil {
		return changed, err
	}
	return changed, e.writeSpec(ctx, p, boot)
}

// buildSpec builds the spec of a claim, and writes it and the files that it mounts.
func (e *Engine) buildSpec(ctx context.Context, p plan.Plan, boot string) error {
	if err := e.o.Edits.Install(ctx); err != nil {
		return err
	}
	files, err := cdi.MetadataFiles(e.o.Driver, p)
	if err != nil {
		return notReady(p, "", err)
	}
	data, err := e.spec(ctx, p, boot, files)
	if err != nil {
		return err
	}
	for i, f := range files {
		if err := e.o.Specs.WriteMounted(p.Claim.UID, store.Metadata(i), f.Data); err != nil {
			return err
		}
	}
	for _, d := range p.Devices {
		if d.TopologyEnv.NCCLTopology != "" { // Before the spec that mounts it.
			if err := e.o.Specs.WriteMounted(p.Claim.UID, store.Topology,
				[]byte(d.TopologyEnv.NCCLTopology)); err != nil {
				return err
			}
		}
	}
	return e.o.Specs.Write(p.Claim.UID, data)
}

func (e *Engine) spec(ctx context.Context, p plan.Plan, boot string, files []cdi.MetadataFile) ([]byte, error) {
	var edits cdi.Edits
	var err error
	if edits.Common, err = e.o.Edits.Common(ctx); err != nil {
		return nil, notReady(p, "", err)
	}
	paths := cdi.Paths{
		MPS:           e.o.MPSDir,
		LimitHook:     e.o.LimitHook,
		LimitRequests: e.o.LimitRequests,
		Topology:      e.o.Specs.MountedPath(p.Claim.UID, store.Topology),
	}
	for i, d := range p.Devices {
		paths.Share = p.EqualShare(i)
		one, err := e.o.Edits.GPU(ctx, d)
		if err != nil {
			return nil, notReady(p, d.Name, err)
		}
		one = cdi.DeviceEdits(one, p.Claim, d, paths)
		for n, f := range files {
			if f.Describes(d) {
				one = cdi.MountMetadata(one, e.o.Specs.MountedPath(p.Claim.UID, store.Metadata(n)), f)
			}
		}
		edits.Devices = append(edits.Devices, one)
	}
	spec, err := cdi.Spec(e.o.Driver, p, boot, edits)
	if err != nil {
		return nil, notReady(p, "", err)
	}
	return cdi.Encode(spec)
}

// current returns the claim's record, or the zero Record without one. It rebuilds an unreadable record from the spec's
// annotation, if possible.
func (e *Engine) current(uid, boot string) (record.Record, error) {
	r, err := e.records.Get(uid)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return record.Record{}, nil
	case errors.Is(err, record.ErrUnreadable):
		return e.rebuild(uid, boot, err)
	case phaseOf(r, boot) == unknown:
		// The record and the spec may have been unreadable only while the record was rebuilt.
		if r, err = e.known(r, boot); err == nil && phaseOf(r, boot) != unknown {
			err = e.records.Put(r)
		}
	}
	return r, err
}

// Devices returns a plan's devices for the answer of Prepare; a group is one device.
func (e *Engine) Devices(p plan.Plan) []PreparedDevice {
	var out []PreparedDevice
	for i, d := range p.Devices {
		if p.Continues(i) {
			group := &out[len(out)-1]
			group.Members = append(group.Members, d)
			continue
		}
		out = append(out, PreparedDevice{Device: d, CDIDeviceID: cdi.DeviceID(e.o.Driver, p, i)})
		if d.Kind == gpu.KindGroup {
			out[len(out)-1].Members = []plan.Device{d}
		}
	}
	return out
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
