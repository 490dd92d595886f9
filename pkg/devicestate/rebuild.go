// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"cmp"
	"errors"

	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// rebuild replaces an unreadable record: the damaged file is kept aside for a person, and the plan in the CDI spec goes
// on blocking its devices. Where there is none the new record blocks every GPU that no other accounts for, until the
// claim is looked up or released. The claim's lock is held.
func (e *Engine) rebuild(uid string, damage error) (record.Record, error) {
	boot, err := e.o.Host.BootID()
	if err != nil {
		return record.Record{}, err
	}
	r := record.Record{State: record.Unknown, BootID: boot, Plan: plan.Plan{Claim: plan.Claim{UID: uid}}}
	blocked := "every GPU that no other claim holds is refused until this claim is looked up or released"
	spec, _ := e.o.Specs.Read(uid) // No spec names no plan.
	if p, carriedOut, err := cdi.PlanOf(e.o.Driver, spec); err == nil && p.Claim.UID == uid {
		r.State, r.Plan, r.BootID = record.Committed, p, cmp.Or(carriedOut, boot)
		blocked = "its devices were found in its CDI spec and stay its own"
	}
	aside, err := e.records.SetAside(uid)
	if err != nil {
		return record.Record{}, errors.Join(damage, err)
	}
	if err := e.records.Put(r); err != nil {
		return record.Record{}, errors.Join(damage, err)
	}
	e.o.Report(&claimerror.Error{
		Reason: claimerror.RecordUnreadable, Attempt: "read the record", Claim: r.Plan.Claim.String(),
		Cause: damage, Remedy: "the file is kept as " + aside + "; " + blocked,
	})
	return r, nil
}
