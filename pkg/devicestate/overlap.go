// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

// The notes in a GPU's lock file are the boot ID, a checksum, and the UIDs of claims that may hold the GPU. A UID is
// noted before its record is written, so one read finds all candidates, however many claims the node has. A note
// without a record and a CDI spec means nothing. Without readable notes of this boot, some may be lost, so all records
// are read.

// noteLines returns a GPU's notes. Without the checksum, a damaged UID would look like no claim.
func noteLines(boot string, uids []string) []string {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{boot}, uids...), "\n")))
	return append([]string{boot, hex.EncodeToString(sum[:8])}, uids...)
}

// notedUIDs returns the UIDs of a GPU's notes; false if the notes are damaged or of another boot.
func notedUIDs(lines []string, boot string) ([]string, bool) {
	if len(lines) < 2 {
		return nil, false
	}
	uids := lines[2:]
	return uids, slices.Equal(lines, noteLines(boot, uids))
}

// HeldError says which other claim holds the device of a refused claim.
type HeldError struct {
	Claim plan.Claim
	text  string
	// device has shares of that claim, with this sharing; nil if the obstacle is another.
	device  string
	sharing *plan.Sharing
}

func (e *HeldError) Error() string { return e.text }

// claimGPUs refuses the plan if another claim holds one of its GPUs, and notes the claim on each. A prepared claim
// conflicts only with readable records that name its GPU. The caller holds the locks.
func (e *Engine) claimGPUs(p plan.Plan, boot string, locks gpuLocks, prepared bool) error {
	addresses := p.HeldGPUs()
	if len(addresses) > 0 && !prepared {
		if err := e.refuseUnknown(p); err != nil {
			return inUse(p, nameAt(p, addresses[0]), err)
		}
	}
	for _, address := range addresses {
		notes := []string{p.Claim.UID}
		totals := newShareTotals(p, address)
		was, err := e.others(locks[address], address, boot, p.Claim.UID, func(uid string, r record.Record) error {
			notes = append(notes, uid)
			switch unknown := phaseOf(r, boot) == unknown; {
			case unknown && prepared:
			case unknown:
				return inUse(p, nameAt(p, address),
					fmt.Errorf("claim UID %s may hold it, because its record is unreadable", uid))
			default:
				if device, taken := p.Conflict(r.Plan, address); taken {
					return inUse(p, device.Name,
						&HeldError{Claim: r.Plan.Claim, text: fmt.Sprintf("%s is held by claim %s (UID %s, %s)",
							overlapText(r.Plan, device), r.Plan.Claim, uid, r.State)})
				}
				// A prepared claim keeps its shares, whichever claims came later.
				if held := totals.add(r.Plan); held != nil && !prepared {
					return inUse(p, held.device, held)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		slices.Sort(notes)
		if err := e.o.Host.SetNotes(labelNotes, locks[address].Lock, was, noteLines(boot, notes)); err != nil {
			return err
		}
	}
	return nil
}

// others calls do for each other claim that may hold a GPU, with its bestRecord. It returns the lines of the GPU's
// notes.
func (e *Engine) others(
	lock *gpuLock, address, boot, uid string, do func(string, record.Record) error,
) ([]string, error) {
	was, uids, err := e.noted(lock.Lock, boot)
	if err != nil {
		return nil, err
	}
	for _, other := range uids {
		if other == uid {
			continue
		}
		r, err := lock.get(other, e.records)
		r = e.bestRecord(other, boot, r, err)
		if now := phaseOf(r, boot); now == absent || now != unknown && !slices.Contains(r.Plan.HeldGPUs(), address) {
			continue
		}
		if err := do(other, r); err != nil {
			return nil, err
		}
	}
	return was, nil
}

// bestRecord returns the most that is known of a claim's record, from the result of its read. This is the record, or
// else the plan in the claim's CDI spec, or the damaged record once it is readable again. Unreadable is not absent:
// without any of them the record is in the state Unknown. Only a record that is gone, of a claim whose spec shows no
// effects, is the zero Record. The caller need not hold the claim's lock. Recover writes the record again.
func (e *Engine) bestRecord(uid, boot string, r record.Record, err error) record.Record {
	read := phaseOf(r, boot)
	switch {
	case err == nil && read != unknown:
		return r
	case errors.Is(err, fs.ErrNotExist):
		r, err = e.lostRecord(uid, boot)
	case err != nil:
		r, err = e.ofSpec(uid, boot)
	default:
		r, err = e.known(r, boot)
	}
	if err != nil {
		r = unknownRecord(uid, boot)
	}
	if now := phaseOf(r, boot); now != absent && now != read {
		e.mark(func() { e.pending = true })
	}
	return r
}

// join changes the plan to the sharing that devices have by other claims, as far as this claim names none, and calls
// claimGPUs. The node's settings may have changed since those claims were prepared.
func (e *Engine) join(
	p plan.Plan, claim *resourceapi.ResourceClaim, node plan.Node, boot string, locks gpuLocks,
) (plan.Plan, error) {
	node.Standing = map[string]plan.Sharing{}
	for {
		err := e.claimGPUs(p, boot, locks, false)
		held := (*HeldError)(nil)
		if !errors.As(err, &held) || held.sharing == nil {
			return p, err
		}
		if _, again := node.Standing[held.device]; again {
			return p, err
		}
		node.Standing[held.device] = *held.sharing
		if p, err = e.o.Planner(claim, node); err != nil {
			return p, err
		}
		if p.Refused != nil {
			return p, p.Refused
		}
	}
}

// refuseServed refuses the plan if a device plugin serves one of its GPUs, because the kubelet assigns that GPU too. It
// may, as long as the kubelet has not answered.
func (e *Engine) refuseServed(p plan.Plan) error {
	served, known := e.o.DevicePlugins.GPUs()
	for _, address := range p.HeldGPUs() {
		if resource := served[address]; resource != "" {
			return p.Claim.Refuse(nameAt(p, address), claimerror.DeviceInUse,
				fmt.Errorf("a device plugin of this node serves the GPU as %s, and can assign it to a pod at any time",
					resource),
				"remove the device plugin from the node, or delete the pod and its claim so that it is scheduled "+
					"elsewhere")
		}
		if !known {
			return p.Claim.Refuse(nameAt(p, address), claimerror.KubeletUnreachable,
				errors.New("the kubelet has not said yet whether a device plugin serves the GPU"),
				"the kubelet retries; if it persists, an Event of the node names the socket that does not answer")
		}
	}
	return nil
}

// refuseFaulty refuses the plan if one of its GPUs hangs, or cannot work before a reset or a reboot. The last scan
// decides, so that Prepare does not wait for NVML.
func (e *Engine) refuseFaulty(p plan.Plan) error {
	snapshot := e.o.Scans.Snapshot()
	for _, address := range p.HeldGPUs() {
		g, _ := snapshot.ByAddress(address)
		if g.Silent {
			return p.Claim.Refuse(nameAt(p, address), claimerror.DeviceNotReady, errors.New(gpu.SilentText),
				ifItHangs+", or delete the pod and its claim to run it elsewhere")
		}
		for _, f := range g.Faults {
			if state, ok := health.Lookup(f.State); ok && !state.Usable {
				return p.Claim.Refuse(nameAt(p, address), claimerror.DeviceNotReady, errors.New(f.Cause),
					state.RemedyFor(address)+". Delete the pod and its claim to run it elsewhere")
			}
		}
	}
	return nil
}

// shareTotals adds up the shares of a plan and of its co-tenants.
type shareTotals struct {
	shares []plan.Device
	use    map[string]*plan.Use
}

func newShareTotals(p plan.Plan, address string) shareTotals {
	t := shareTotals{use: map[string]*plan.Use{}}
	for _, d := range p.Devices {
		if d.PCIAddress != address || !d.Partial() || d.Admin {
			continue
		}
		if t.use[d.Name] == nil {
			t.shares, t.use[d.Name] = append(t.shares, d), &plan.Use{}
		}
		t.use[d.Name].Add(d.Share)
	}
	return t
}

// add adds another claim's plan. It returns an error if a device becomes impossible.
func (t shareTotals) add(other plan.Plan) *HeldError {
	for _, d := range t.shares {
		for _, o := range other.Devices {
			if !d.Shares(o) {
				continue
			}
			if reason := d.Disagrees(o); reason != "" {
				return &HeldError{other.Claim, fmt.Sprintf("claim %s (UID %s), which came first, %s", other.Claim,
					other.Claim.UID, reason), d.Name, &o.Sharing}
			}
			t.use[d.Name].Add(o.Share)
		}
		if excess := t.use[d.Name].Excess(d.Share); excess != "" {
			return &HeldError{other.Claim, fmt.Sprintf("with this claim and claim %s (UID %s) %s", other.Claim,
				other.Claim.UID, excess), d.Name, nil}
		}
	}
	return nil
}

// noted returns a GPU's notes: the lines, and the UIDs of all claims that may hold it. A claim without a note can have
// lost its record too.
func (e *Engine) noted(lock *host.Lock, boot string) (was, uids []string, err error) {
	was, err = lock.Notes()
	if uids, ok := notedUIDs(was, boot); ok && err == nil {
		return was, uids, nil
	}
	uids, specs, err := e.uids()
	return was, union(uids, specs), err
}

// removeNote removes a claim from a GPU's notes. After an error, later claims look for a record that does not exist.
func (e *Engine) removeNote(lock *host.Lock, uid, boot string) {
	was, err := lock.Notes()
	uids, ok := notedUIDs(was, boot)
	if err != nil || !ok {
		return
	}
	uids = slices.DeleteFunc(slices.Clone(uids), func(note string) bool { return note == uid })
	_ = e.o.Host.SetNotes(labelNotes, lock, was, noteLines(boot, uids))
}

// refuseUnknown refuses the plan while a claim with an unreadable record may hold any GPU.
func (e *Engine) refuseUnknown(p plan.Plan) error {
	uids, err := e.records.Unknown()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		if uid != p.Claim.UID {
			return fmt.Errorf("the record of claim UID %s was unreadable, so its devices are unknown", uid)
		}
	}
	return nil
}

// overlapText describes the overlap of another claim's plan with a device.
func overlapText(p plan.Plan, d plan.Device) string {
	if i := slices.IndexFunc(p.Devices, d.Overlaps); i >= 0 && p.Devices[i].Name != d.Name {
		return "it overlaps " + p.Devices[i].Name + ", which"
	}
	return "it"
}

func nameAt(p plan.Plan, address string) string {
	for _, d := range p.Devices {
		if d.PCIAddress == address && !d.Admin {
			return d.Name
		}
	}
	return address
}

// Held lists the plans of all records in any state, because their devices must stay published. If incomplete is true, a
// record's plan is unknown, and any GPU in no plan may be held too.
func (e *Engine) Held() (plans []plan.Plan, incomplete bool, err error) {
	plans, incomplete, _, err = e.held(e.records.Get)
	return plans, incomplete, err
}

// held is Held with the records of get. recorded means that a readable record has each plan, so that only a
// change of a record changes the list.
func (e *Engine) held(
	get func(uid string) (record.Record, error),
) (plans []plan.Plan, incomplete, recorded bool, err error) {
	boot, err := e.o.Host.BootID()
	if err != nil {
		return nil, false, false, err
	}
	uids, specs, err := e.uids()
	if err != nil {
		return nil, false, false, err
	}
	recorded = true
	for _, uid := range union(uids, specs) {
		r, err := get(uid)
		recorded = recorded && err == nil && r.State != record.Unknown
		switch r = e.bestRecord(uid, boot, r, err); phaseOf(r, boot) {
		case absent: // Another call released it.
		case unknown:
			incomplete = true
		default:
			plans = append(plans, r.Plan)
		}
	}
	return plans, incomplete, recorded, nil
}

// WithGPULock calls do with the lock of a GPU and the plans that hold a part of it. It does nothing while some of these
// plans are unknown. It reads only the records that the GPU's notes name.
func (e *Engine) WithGPULock(ctx context.Context, address string, do func([]plan.Plan) error) error {
	locks, err := e.lockGPUs(ctx, address)
	if err != nil {
		return err
	}
	defer locks.release()
	boot, err := e.o.Host.BootID()
	if err != nil {
		return err
	}
	blocking, err := e.records.Unknown()
	if err != nil || len(blocking) > 0 {
		return err
	}
	var plans []plan.Plan
	incomplete := false
	_, err = e.others(locks[address], address, boot, "", func(_ string, r record.Record) error {
		incomplete = incomplete || phaseOf(r, boot) == unknown
		plans = append(plans, r.Plan)
		return nil
	})
	if err != nil || incomplete {
		return err
	}
	return do(plans)
}

func (e *Engine) Quarantined() (int, error) { return e.records.Quarantined() }

// MissingSpecs reports whether a prepared claim lacks its CDI spec, which Recover rewrites: a restarting container
// needs it without a Prepare. It lists two directories if none is missing. store.ErrUnlinked means that only a new
// process, with new mounts, can write specs.
func (e *Engine) MissingSpecs() (bool, error) {
	if err := e.o.Specs.Usable(); err != nil {
		return false, err
	}
	uids, err := e.records.UIDs()
	if err != nil {
		return false, err
	}
	specs, err := e.o.Specs.Written()
	if err != nil {
		return false, err
	}
	for _, uid := range uids {
		if slices.Contains(specs, uid) {
			continue
		}
		r, err := e.records.Get(uid)
		boot, bootErr := e.o.Host.BootID()
		switch {
		case errors.Is(err, fs.ErrNotExist): // Another call released it.
		case errors.Is(err, record.ErrUnreadable):
			return true, nil // Recover rebuilds it. It must not hide the specs that others lack.
		case err != nil || bootErr != nil:
			return false, cmp.Or(err, bootErr)
		case phaseOf(r, boot) == committed:
			return true, nil
		}
	}
	return false, nil
}
