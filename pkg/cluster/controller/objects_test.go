// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestObjects_WaitingClaims_KeepWhatDecides has one claim with an allocation and one without.
func TestObjects_WaitingClaims_KeepWhatDecides(t *testing.T) {
	for name, leads := range map[string]bool{"leader": true, "other instance": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, machine(t, "l40s-4", "a", 0)...)
				held, waits := claimOf("held", l40sClass), claimOf("waits", l40sClass)
				for _, c := range []*resourceapi.ResourceClaim{held, waits} {
					c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p"}}
					c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName("a/b"))}}
				}
				held.Status.Allocation = &resourceapi.AllocationResult{}
				e.Put(held)
				e.Put(waits)
				c, stop := e.startAs(leads, func(o *Options) { o.Waiting = true })
				defer stop()
				pass(time.Second)
				objects, ok := c.Objects()
				if !leads {
					if ok || c.Claim(waits.Namespace, waits.Name) != nil {
						t.Error("an instance that does not lead has no claims")
					}
					return
				}
				if !ok || len(objects.Claims) != 2 || len(objects.Slices) == 0 || len(objects.Classes) == 0 || objects.Server.Minor == 0 {
					t.Fatalf("%v, %+v", ok, objects)
				}
				if got := c.Claim(held.Namespace, held.Name); got == nil || len(got.Spec.Devices.Constraints)+len(got.OwnerReferences) != 0 {
					t.Errorf("the claim with devices takes memory for %+v", got)
				}
				if got := c.Claim(waits.Namespace, waits.Name); got == nil || len(got.Spec.Devices.Constraints) != 1 || len(got.OwnerReferences) != 1 {
					t.Errorf("the claim without devices is %+v", got)
				}
			})
		})
	}
}
