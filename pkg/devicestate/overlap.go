// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/devicestate/plan"
	"gpu-dra-driver/pkg/devicestate/record"
)

// The notes in a GPU's lock file are the UIDs of the claims that may hold it. A UID is noted before its record is
// written, so that one read answers "who else?" however many claims the node has; a note without a record means nothing.

// claimGPUs refuses the plan if another claim holds one of its GPUs, and notes the claim on each. The locks are held.
func (e *Engine) claimGPUs(p plan.Plan, locks gpuLocks) error {
	for _, address := range p.Exclusive() {
		lock := locks[address]
		was, err := lock.Notes()
		if err != nil {
			return e.failure("prepare", p, err)
		}
		notes := []string{p.Claim.UID}
		for _, uid := range was {
			if uid == p.Claim.UID {
				continue
			}
			holds, err := e.holder(uid, address)
			if err != nil {
				return e.inUse(p, address, err)
			}
			if holds != "" {
				return e.inUse(p, address, errors.New("it is prepared for "+holds))
			}
		}
		if err := e.claimUnknown(p); err != nil {
			return e.inUse(p, address, err)
		}
		slices.Sort(notes)
		if err := e.Host.SetNotes(LabelNotes, lock, was, notes); err != nil {
			return e.failure("prepare", p, err)
		}
	}
	return nil
}

// holder names the claim of a UID if it holds the GPU, and is empty if it does not. An error means that nobody can tell.
func (e *Engine) holder(uid, address string) (string, error) {
	r, err := e.records.Get(uid)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case r.State == record.Unknown, slices.Contains(r.Plan.Exclusive(), address):
		return fmt.Sprintf("claim %s (UID %s, %s)", r.Plan.Claim, uid, r.State), nil
	}
	return "", nil
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

func (e *Engine) inUse(p plan.Plan, address string, cause error) error {
	return &claimerror.Error{
		Kind: claimerror.Transient, Reason: claimerror.DeviceInUse, Attempt: "prepare", Claim: p.Claim.String(),
		Device: nameAt(p, address), Cause: cause,
		Remedy: "it is retried and succeeds once the other claim is released; delete that claim's pod if it should not be there",
	}
}

func nameAt(p plan.Plan, address string) string {
	for _, d := range p.Devices {
		if d.PCIAddress == address {
			return d.Name
		}
	}
	return address
}

// failure is an error of this node, with the disk or the driver root.
func (e *Engine) failure(attempt string, p plan.Plan, cause error) error {
	var said *claimerror.Error
	if errors.As(cause, &said) {
		return cause
	}
	return &claimerror.Error{
		Kind: claimerror.Transient, Reason: claimerror.HostFailure, Attempt: attempt, Claim: p.Claim.String(), Cause: cause,
		Remedy: "it is retried; if it persists, look at the node's disk and at the log of its kubelet plugin",
	}
}
