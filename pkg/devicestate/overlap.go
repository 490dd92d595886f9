// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// The notes in a GPU's lock file are the boot ID and the UIDs of the claims that may hold the GPU. A UID is noted before
// its record is written, so that one read answers "who else?" however many claims the node has; a note without a record
// means nothing. Notes of another boot, or none, mean that the machine may have forgotten some: then all records are read.

// claimGPUs refuses the plan if another claim holds one of its GPUs, and notes the claim on each. A claim that is
// prepared already (mine) yields only to a record that names its GPU, not to one that nobody can read. The locks are held.
func (e *Engine) claimGPUs(p plan.Plan, boot string, locks gpuLocks, mine bool) error {
	addresses := p.Exclusive()
	if len(addresses) > 0 && !mine {
		if err := e.claimUnknown(p); err != nil {
			return e.inUse(p, nameAt(p, addresses[0]), err)
		}
	}
	for _, address := range addresses {
		was, uids, err := e.noted(locks[address], address, boot)
		if err != nil {
			return err
		}
		notes := []string{p.Claim.UID}
		sharers := sharers{plan: p, address: address}
		for _, uid := range uids {
			if uid == p.Claim.UID {
				continue
			}
			r, err := e.records.Get(uid)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				continue
			case err == nil && r.State == record.Unknown:
				err = fmt.Errorf("claim UID %s may hold it, whose record was unreadable", uid)
			case err == nil && !slices.Contains(r.Plan.Exclusive(), address):
				continue
			case err == nil:
				if device, taken := p.Conflict(r.Plan, address); taken {
					return e.inUse(p, device.Name, fmt.Errorf("%s is held by claim %s (UID %s, %s)",
						holding(r.Plan, device), r.Plan.Claim, uid, r.State))
				}
				// What a claim shares already stands, whoever came since.
				if device, why := sharers.join(r.Plan); why != "" && !mine {
					return e.inUse(p, device, errors.New(why))
				}
			}
			if err != nil && !mine {
				return e.inUse(p, nameAt(p, address), err)
			}
			notes = append(notes, uid)
		}
		slices.Sort(notes)
		if err := e.Host.SetNotes(LabelNotes, locks[address], was, append([]string{boot}, notes...)); err != nil {
			return err
		}
	}
	return nil
}

// served refuses the plan if a device plugin of the node serves one of its GPUs: the kubelet hands that out on its own.
func (e *Engine) served(p plan.Plan) error {
	if e.Rival == nil {
		return nil
	}
	for _, address := range p.Exclusive() {
		if resource := e.Rival(address); resource != "" {
			return &claimerror.Error{
				Reason: claimerror.DeviceInUse, Attempt: "prepare", Claim: p.Claim.String(), Device: nameAt(p, address),
				Cause:  fmt.Errorf("a device plugin of this node serves the GPU as %s, and may give it to a pod at any moment", resource),
				Remedy: "remove the device plugin from the node, and it is retried; or delete the pod and its claim so that it is scheduled elsewhere",
			}
		}
	}
	return nil
}

// sharers count what a plan's shares of a GPU take together with those of other claims.
type sharers struct {
	plan    plan.Plan
	address string
	use     map[string]plan.Use
}

// join adds another claim's plan and says which device it makes impossible, and why.
func (s *sharers) join(other plan.Plan) (device, why string) {
	for _, d := range s.plan.Devices {
		if d.PCIAddress != s.address || !d.Partial() || d.Admin {
			continue
		}
		if s.use == nil {
			s.use = map[string]plan.Use{}
		}
		use, known := s.use[d.Name]
		if !known {
			for _, own := range s.plan.Devices {
				if own.Name == d.Name {
					use.Add(own.Share)
				}
			}
		}
		for _, o := range other.Devices {
			if !d.Shares(o) {
				continue
			}
			if reason := d.Disagrees(o); reason != "" {
				return d.Name, fmt.Sprintf("claim %s (UID %s), which came first, %s", other.Claim, other.Claim.UID, reason)
			}
			use.Add(o.Share)
		}
		s.use[d.Name] = use
		if excess := use.Excess(d.Share); excess != "" {
			return d.Name, fmt.Sprintf("with this claim and claim %s (UID %s) %s", other.Claim, other.Claim.UID, excess)
		}
	}
	return "", ""
}

// noted reads a GPU's notes: the lines as they are, and the UIDs of all claims that may hold it.
func (e *Engine) noted(lock *host.Lock, address, boot string) (was, uids []string, err error) {
	if was, err = lock.Notes(); err != nil {
		return nil, nil, err
	}
	if len(was) > 0 && was[0] == boot {
		return was, was[1:], nil
	}
	records, unreadable, err := e.records.All()
	if err != nil {
		return nil, nil, err
	}
	for _, r := range records {
		if r.State == record.Unknown || slices.Contains(r.Plan.Exclusive(), address) {
			unreadable = append(unreadable, r.Plan.Claim.UID)
		}
	}
	return was, unreadable, nil
}

// forget takes a claim out of a GPU's notes. That it may fail costs a later claim one look at a record that is gone.
func (e *Engine) forget(lock *host.Lock, uid string) {
	was, err := lock.Notes()
	if err != nil {
		return
	}
	_ = e.Host.SetNotes(LabelNotes, lock, was, slices.DeleteFunc(slices.Clone(was), func(note string) bool { return note == uid }))
}

// claimUnknown refuses the plan while the owner of an unreadable record could be on any GPU.
func (e *Engine) claimUnknown(p plan.Plan) error {
	uids, err := e.records.Unknown()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		if uid != p.Claim.UID {
			return fmt.Errorf("the record of claim UID %s was unreadable, so the devices that claim holds are not known", uid)
		}
	}
	return nil
}

// holding names the device of another claim's plan that is in a device's way.
func holding(p plan.Plan, d plan.Device) string {
	for _, other := range p.Devices {
		if d.Overlaps(other) && other.Name != d.Name {
			return "it overlaps " + other.Name + ", which"
		}
	}
	return "it"
}

func (e *Engine) inUse(p plan.Plan, device string, cause error) error {
	return &claimerror.Error{
		Reason: claimerror.DeviceInUse, Attempt: "prepare", Claim: p.Claim.String(),
		Device: device, Cause: cause,
		Remedy: "it is retried and succeeds once the other claim is released; delete that claim's pod if it should not be there",
	}
}

func nameAt(p plan.Plan, address string) string {
	for _, d := range p.Devices {
		if d.PCIAddress == address && !d.Admin {
			return d.Name
		}
	}
	return address
}

// failure is an error of this node, with the disk or the driver root, unless the cause is one that says more or the
// caller's patience ended.
func (e *Engine) failure(ctx context.Context, attempt string, p plan.Plan, cause error) error {
	var said *claimerror.Error
	if errors.As(cause, &said) {
		return cause
	}
	f := &claimerror.Error{
		Reason: claimerror.HostFailure, Attempt: attempt, Claim: claimText(p.Claim), Cause: cause,
		Remedy: "it is retried; if it persists, look at the node's disk and at the log of its kubelet plugin",
	}
	if ctx.Err() != nil {
		f.Reason = claimerror.Interrupted
		f.Remedy = "it is retried; another claim's work on the same GPU or claim took longer than the kubelet waits"
	}
	return f
}

// noDevice is the error for a step of a record that does not fit its plan.
func (e *Engine) noDevice(p plan.Plan, step plan.Step) error {
	return &claimerror.Error{
		Reason: claimerror.HostFailure, Attempt: "work on GPU " + step.PCIAddress, Claim: claimText(p.Claim),
		Cause:  fmt.Errorf("the claim's record has %d devices and a step for number %d", len(p.Devices), step.Device),
		Remedy: "install the version that prepared the claim, or a later one; nothing of the claim is forgotten until then",
	}
}

// noExecutor is the error for a step of a record that a later version of the driver wrote.
func (e *Engine) noExecutor(p plan.Plan, step plan.Step) error {
	return &claimerror.Error{
		Reason: claimerror.HostFailure, Attempt: "work on GPU " + step.PCIAddress, Claim: claimText(p.Claim),
		Cause:  fmt.Errorf("this version of the driver has no %q", step.Executor),
		Remedy: "install the version that prepared the claim, or a later one; nothing of the claim is forgotten until then",
	}
}
