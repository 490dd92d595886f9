// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/api/budget/v1alpha1"
)

// Claim is a claim with its cost.
type Claim struct {
	Name   string
	UID    types.UID
	Charge Charge
	// For names the entry of a pod, as in a Reservation.
	For string
}

// creation is the name that reservations have in common of which one claim comes at most.
func creation(r v1alpha1.Reservation) string {
	if r.For != "" {
		return "for " + r.For
	}
	return r.Claim
}

// IsCounted reports whether the controller has counted the claims under the budget as it is now.
func IsCounted(b *v1alpha1.GPUBudget) bool {
	return b.Status.CountedVersion != "" && b.Status.ObservedGeneration == b.Generation
}

// Check returns why a budget has no room for a cost, or nil. It is Refused.
func Check(b *v1alpha1.GPUBudget, asked Charge) error { return check(b, Charge{}, asked) }

// check leaves out a part of the use.
func check(b *v1alpha1.GPUBudget, without, asked Charge) error {
	name := "GPU budget " + b.Namespace + "/" + b.Name
	hard := b.Spec.Hard
	switch {
	case asked.Unknown != "" && (asked.UnknownGPUs || bounds(hard)):
		return Refused(fmt.Sprintf("%s: it cannot be counted: %s. A budget without limits of memory and models "+
			"counts GPUs and partitions that no node has yet", name, asked.Unknown))
	case !IsCounted(b):
		return Refused(name + " is new or was changed, and the controller counts the claims of the namespace: try " +
			"again in a moment")
	}
	var broken []string
	for _, l := range limits(hard, read(b.Status.Used).Minus(without), asked) {
		if l.broken() {
			broken = append(broken, l.String())
		}
	}
	if len(broken) == 0 {
		return nil
	}
	return Refused(fmt.Sprintf("%s is exhausted: %s. Delete claims, or have an administrator raise the budget; "+
		"kubectl gpu quota -n %s shows its use",
		name, strings.Join(broken, "; "), b.Namespace))
}

// Reserve adds the reservation of a claim to the status, or returns why not. Reservations of one name, or for one entry
// of a pod, cost as much as the largest of them, because only one of their claims comes.
func Reserve(b *v1alpha1.GPUBudget, claim Claim, now time.Time) error {
	own := v1alpha1.Reservation{
		Claim: claim.Name, UID: claim.UID, For: claim.For,
		Since: metav1.NewMicroTime(now), Charge: claim.Charge.complete(),
	}
	var was Charge
	for _, r := range b.Status.Reservations {
		if creation(r) == creation(own) {
			was = was.Larger(read(r.Charge))
		}
	}
	asked := claim.Charge.Larger(was)
	if err := check(b, was, asked); err != nil {
		return err
	}
	if len(b.Status.Reservations) >= v1alpha1.MaxReservations {
		return Refused(fmt.Sprintf("GPU budget %s/%s: %d claims are being created, and the controller has not "+
			"counted them yet: try again in a moment",
			b.Namespace, b.Name, len(b.Status.Reservations)))
	}
	b.Status.Reservations = append(b.Status.Reservations, own)
	b.Status.Used = read(b.Status.Used).Minus(was).Plus(asked).written(b.Spec.Hard)
	return nil
}

// Expiry is the age of a reservation, since the leader first saw it, from which on its claim cannot appear any more. An
// API server ends a request after a minute by default.
const Expiry = 90 * time.Second

// Counted are the claims of a namespace, from a cache or a list.
type Counted struct {
	// Claims has each claim by its UID.
	Claims map[types.UID]Claim
	// Version is a resourceVersion: the claims have all changes until then.
	Version string
	// Gone has the UIDs of old reservations whose claim does not exist, as a request found after their expiry.
	Gone map[types.UID]bool
	// Ages shows which reservations are old.
	Ages Ages
}

// Ages has the time at which this process first saw each reservation of a budget. The time in the reservation is by the
// clock of the process that made it, which can differ by minutes.
type Ages map[sighting]time.Time

// sighting identifies a reservation.
type sighting struct {
	uid   types.UID
	since int64
}

func sightingOf(r v1alpha1.Reservation) sighting { return sighting{r.UID, r.Since.UnixMicro()} }

// Next returns the ages after a read of the budget.
func (a Ages) Next(b *v1alpha1.GPUBudget, now time.Time) Ages {
	out := make(Ages, len(b.Status.Reservations))
	for _, r := range b.Status.Reservations {
		key := sightingOf(r)
		out[key] = now
		if first, known := a[key]; known {
			out[key] = first
		}
	}
	return out
}

// old reports whether the claim of a reservation cannot appear any more.
func (a Ages) old(r v1alpha1.Reservation, now time.Time) bool {
	first, known := a[sightingOf(r)]
	return known && now.Sub(first) >= Expiry
}

// Old returns the reservations that are old enough for a request that asks whether their claim exists.
func (a Ages) Old(b *v1alpha1.GPUBudget, now time.Time) (out []v1alpha1.Reservation) {
	for _, r := range b.Status.Reservations {
		if a.old(r, now) {
			out = append(out, r)
		}
	}
	return out
}

// over reports whether a reservation has ended: its claim is counted, or cannot appear any more.
func (c Counted) over(r v1alpha1.Reservation, now time.Time) bool {
	_, counted := c.Claims[r.UID]
	return counted || c.Gone[r.UID] && c.Ages.old(r, now)
}

// Count sets the status of a budget to the use by claims that exist, with the reservations of the others.
func Count(b *v1alpha1.GPUBudget, c Counted, now time.Time) {
	names := map[string]Charge{}
	for _, claim := range c.Claims {
		names[claim.Name] = claim.Charge
	}
	made := map[string]int{} // The last reservation for an entry of a pod whose claim is counted.
	for i, r := range b.Status.Reservations {
		if _, counted := c.Claims[r.UID]; counted {
			made[r.For] = i
		}
	}
	var kept []v1alpha1.Reservation
	for i, r := range b.Status.Reservations {
		// Kubernetes tries again only after a refusal, so those before that one are of creations that failed.
		if c.over(r, now) || r.For != "" && i < made[r.For] {
			continue
		}
		kept = append(kept, r)
		names[creation(r)] = names[creation(r)].Larger(read(r.Charge)) // One claim of a name exists at a time.
	}
	var used Charge
	for _, charge := range names {
		used = used.Plus(charge)
	}
	s := &b.Status
	s.Reservations, s.Hard, s.Used = kept, b.Spec.Hard, used.written(b.Spec.Hard)
	s.ObservedGeneration, s.CountedVersion = b.Generation, c.Version
	var over []string
	for _, l := range limits(b.Spec.Hard, used, Charge{}) {
		if l.used > l.hard {
			over = append(over, fmt.Sprintf("%s: %s of %s are used", l.what, l.unit(l.used), l.unit(l.hard)))
		}
	}
	condition := metav1.Condition{
		Type:               v1alpha1.Exceeded,
		Status:             metav1.ConditionFalse,
		Reason:             "Within",
		Message:            "The claims are within the budget.",
		ObservedGeneration: b.Generation,
	}
	if len(over) > 0 {
		condition.Status, condition.Reason = metav1.ConditionTrue, "Exceeded"
		condition.Message = strings.Join(over, "; ") + ". New claims are refused; those that exist keep their devices."
	}
	if was := meta.FindStatusCondition(s.Conditions, condition.Type); was == nil || was.Status != condition.Status {
		condition.LastTransitionTime = metav1.NewTime(now)
	}
	meta.SetStatusCondition(&s.Conditions, condition)
}

// Ratio is the use of a limit, for metrics.
type Ratio struct {
	// Limit is `gpus` or `memory`, and Model is empty for the limit of all models. GPUs are counted, and memory is in
	// bytes.
	Limit, Model string
	Used, Hard   float64
}

// Ratios returns the use of each limit of a budget.
func Ratios(b *v1alpha1.GPUBudget) (out []Ratio) {
	used := read(b.Status.Used)
	add := func(model string, l v1alpha1.Amount, used Amount) {
		if l.GPUs != nil {
			out = append(out, Ratio{"gpus", model, float64(used.MilliGPUs) / 1000, float64(l.GPUs.MilliValue()) / 1000})
		}
		if l.Memory != nil {
			out = append(out, Ratio{"memory", model, float64(used.Bytes), float64(l.Memory.Value())})
		}
	}
	add("", b.Spec.Hard.Amount, used.Amount)
	for _, m := range b.Spec.Hard.Models {
		add(m.ProductName, m.Amount, used.Models[m.ProductName])
	}
	return out
}
