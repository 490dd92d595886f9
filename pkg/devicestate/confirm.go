// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// A CDI spec names device nodes by number. The kernel can give a number to another GPU after a reload of the driver,
// and to another partition after a loss. So a spec that is not confirmed is removed. The container runtime then refuses
// to start the claim's containers. The kubelet retries until Recover has written the spec again.

// Renumbered reports whether device numbers may have changed since the last Recover, as after a reload of the driver.
// It compares what the kernel shows with little work, and the GPUs of the last scan.
func (e *Engine) Renumbered() bool {
	kernel, minors := e.o.Kernel(), minorsOf(e)
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kernel != kernel || !maps.Equal(e.minors, minors)
}

// minorsOf returns the minor numbers of the last scan by PCI address.
func minorsOf(e *Engine) map[string]int {
	minors := map[string]int{}
	for _, g := range e.o.Scans.Snapshot().GPUs {
		minors[g.PCIAddress] = g.Minor
	}
	return minors
}

// confirmAfterChange calls confirm if the kernel may have changed device numbers since the last call. It returns
// Options.Kernel as of its start.
func (e *Engine) confirmAfterChange(ctx context.Context) (kernel string) {
	kernel, same := e.o.Kernel(), false
	e.mark(func() { same = e.kernel == kernel })
	if !same {
		_, _ = e.confirm(ctx) // Recover retries failed removals.
	}
	return kernel
}

// confirm compares all specs with the kernel's device numbers and removes those that differ. It takes no lock of a
// claim or GPU: work that hangs on a GPU holds them, and another claim may have that GPU's number. It returns errors of
// removals, and waits as Recover does.
func (e *Engine) confirm(ctx context.Context) ([]Finding, error) {
	e.confirms.Lock()
	defer e.confirms.Unlock()
	kernel := e.o.Kernel() // Before the specs are read: Renumbered notices a later change.
	uids, err := e.o.Specs.Written()
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, uid := range uids {
		findings = append(findings, Finding{Claim: plan.Claim{UID: uid}, Found: "spec"})
	}
	findings = e.eachClaim(context.WithoutCancel(ctx), &e.confirming, e.o.WorkLimit, findings,
		func(ctx context.Context, f *Finding) error {
			// The end of a context must not look like a failed read.
			return e.confirmSpec(context.WithoutCancel(ctx), f)
		})
	e.mark(func() { e.kernel = kernel })
	return slices.DeleteFunc(findings, func(f Finding) bool {
		return claimerror.ReasonOf(f.Err) == claimerror.Interrupted
	}), nil
}

// confirmSpec removes the spec of a claim if its device nodes are not those that the kernel has for the claim's devices
// now.
func (e *Engine) confirmSpec(ctx context.Context, f *Finding) error {
	uid := f.Claim.UID
	data, err := e.o.Specs.Read(uid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the CDI spec: %w", err)
	}
	p, boot, err := cdi.PlanOf(e.o.Driver, data)
	if err != nil {
		return nil // No runtime finds devices in it: they are named in the plan too. Recover removes or replaces it.
	}
	f.Claim = p.Claim
	why := e.outdated(ctx, data, p, boot)
	if why == nil {
		return nil
	}
	if again, err := e.o.Specs.Read(uid); err == nil && !bytes.Equal(again, data) {
		return nil // A Prepare has just replaced it, and compared it with the kernel.
	}
	return e.withdraw(p.Claim, why)
}

// outdated returns why a spec must not be used now, or nil. A driver root that lacks files, as while it is replaced,
// says nothing about numbers.
func (e *Engine) outdated(ctx context.Context, data []byte, p plan.Plan, boot string) error {
	var edits cdi.Edits
	var incomplete error
	edits.Common, incomplete = e.o.Edits.Common(ctx)
	for _, d := range p.Devices {
		one, err := e.o.Edits.GPU(ctx, d)
		if err != nil {
			return notReady(p, d.Name, err)
		}
		edits.Devices = append(edits.Devices, one)
	}
	now, err := cdi.Spec(e.o.Driver, p, boot, edits)
	if err != nil {
		return err
	}
	return cdi.CompareNodes(data, now, incomplete == nil)
}

// withdraw removes the spec of a claim, if there is one, and reports why.
func (e *Engine) withdraw(c plan.Claim, why error) error {
	if _, err := e.o.Specs.Read(c.UID); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := e.o.Specs.Withdraw(c.UID); err != nil {
		return err
	}
	report := &claimerror.Error{
		Reason: claimerror.DeviceNotReady, Attempt: "keep the CDI spec", Claim: c.String(), UID: c.UID,
		Remedy: "the claim's containers start again once the plugin has written the spec again, which it retries; " +
			"delete the pod if its processes do not see the GPU, because a running container keeps the device nodes " +
			"of its start",
	}
	var explained *claimerror.Error
	if errors.As(why, &explained) {
		report.Reason, report.Device, why = explained.Reason, explained.Device, explained.Cause
	}
	report.Cause = fmt.Errorf("it was removed, so that no container gets the device of another claim: %w", why)
	e.o.Reports.Report(report)
	return nil
}

// withdrawUnchecked removes the spec of a claim after a failed check of its effects, unless the check had no answer. It
// returns the check's error.
func (e *Engine) withdrawUnchecked(c plan.Claim, check error) error {
	if check == nil || leavesOpen(check) {
		return check
	}
	if err := e.withdraw(c, check); err != nil {
		check = errors.Join(check, err)
	}
	return check
}

// withdrawReplaced removes the specs of other claims that name a partition of this plan: their own partition was lost,
// and the kernel gave its number to the new one. Numbers alone do not show that.
func (e *Engine) withdrawReplaced(p plan.Plan, others coTenants) error {
	for _, d := range p.Devices {
		for _, t := range others[d.PCIAddress].devices {
			o := t.Device
			both := d.Kind == gpu.KindMIG && o.Kind == gpu.KindMIG && !d.Admin && !o.Admin
			if !both || o.PCIAddress != d.PCIAddress || o.Name == d.Name || o.Partition.UUID == "" ||
				o.Partition.GPUInstance != d.Partition.GPUInstance {
				continue
			}
			why := fmt.Errorf("%s: %w; %s has its number now", o.Name, plan.ErrDestroyed, d.Name)
			if err := e.withdraw(t.Claim, why); err != nil {
				return err
			}
		}
	}
	return nil
}

// leavesOpen reports whether an error of a check means that it got no answer. Then the kernel's numbers decide alone:
// NVML can hang because of one GPU, and the other claims of the node must keep their specs.
func leavesOpen(err error) bool {
	var code nvml.Code
	var explained *claimerror.Error
	switch {
	case errors.Is(err, plan.ErrDestroyed), sessionpool.IsGone(err):
		return false
	case errors.As(err, &code), errors.Is(err, mpsd.ErrAway), errors.Is(err, mpsd.ErrRefused),
		errors.Is(err, host.ErrPanic),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return true
	case errors.As(err, &explained):
		return explained.Reason == claimerror.Interrupted || explained.Reason == claimerror.HostFailure
	}
	return false
}

// writeAttempts limits the attempts to write a spec while the kernel renumbers devices.
const writeAttempts = 3

var errRenumbered = errors.New("the driver gave the node's GPUs other numbers meanwhile")

// writeSpec writes the spec of a claim from the kernel's device numbers. It removes other specs first if the numbers
// may have changed, and its own if it cannot be confirmed.
func (e *Engine) writeSpec(ctx context.Context, p plan.Plan, boot string) error {
	err := notReady(p, "", errRenumbered)
	for range writeAttempts {
		kernel := e.confirmAfterChange(ctx)
		buildErr := e.buildSpec(ctx, p, boot)
		if buildErr != nil {
			err = buildErr
			break
		}
		if e.o.Kernel() == kernel {
			return nil
		}
	}
	f := Finding{Claim: p.Claim}
	if confirmErr := e.confirmSpec(context.WithoutCancel(ctx), &f); confirmErr != nil {
		err = errors.Join(err, confirmErr)
	}
	return err
}
