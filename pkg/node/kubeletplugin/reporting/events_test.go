// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/claim/claimerror"
)

func newEvents(e *env.Env) *Events {
	events := NewEvents(e.Client, env.Node, env.Driver, e.Metrics)
	e.Go(events.Run)
	return events
}

func TestEvents_LongMessageAndManyPods_StayWithinLimits(t *testing.T) {
	e := env.New(t)
	c := env.Claim("many", "", "")
	c.Status.ReservedFor = nil
	for i := range 100 {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: fmt.Sprintf("p%d", i), UID: types.UID(fmt.Sprint(i)),
		})
	}
	newEvents(e).ClaimFailed(c, errors.New(strings.Repeat("ä", maxMessage)))
	e.Event("Pod", fmt.Sprintf("p%d", maxConsumers-1), "HostFailure")
	list, err := e.Client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != maxConsumers+1 {
		t.Errorf("%d Events, want one for the claim and %d for pods", len(list.Items), maxConsumers)
	}
	for _, event := range list.Items {
		if len(event.Message) > maxMessage || !strings.HasSuffix(event.Message, "ä…") {
			t.Fatalf("message of %d bytes, ending %q", len(event.Message), event.Message[len(event.Message)-8:])
		}
	}
}

func TestEvents_ClaimOfPodGroup_PodGroupHasEvent(t *testing.T) {
	e := env.New(t)
	c := env.Claim("gang", "", "")
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
		{APIGroup: "example.com", Resource: "podgroups", Name: "other", UID: "o"},
		{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "workers", UID: "w"},
	}
	newEvents(e).ClaimFailed(c, errors.New("x"))
	if event := e.Event("PodGroup", "workers", "HostFailure"); event.InvolvedObject.UID != "w" {
		t.Errorf("the Event's PodGroup has UID %q", event.InvolvedObject.UID)
	}
	list, err := e.Client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 {
		t.Errorf("%d Events, want one for the claim and one for the PodGroup", len(list.Items))
	}
}

func TestEvents_Report_FindsClaimOrNode(t *testing.T) {
	e := env.New(t, env.Claim("known", "", ""))
	events := NewEvents(e.Client, env.Node, env.Driver, e.Metrics)
	report := func(claim, uid string, reason claimerror.Reason) {
		events.Report(&claimerror.Error{Reason: reason, Attempt: "look", Claim: claim, UID: uid, Cause: errors.New("x")})
	}
	report("ns/claim-known", "known", claimerror.RecordUnreadable) // Before Run.
	e.Go(events.Run)
	report("ns/unknown", "unknown", claimerror.DeviceLost)
	report("ns/claim-known", "earlier", claimerror.MPSDaemonDied) // A claim of before had the name.
	report("UID 123", "123", claimerror.HostFailure)
	events.Report(errors.New("of no kind"))
	if event := e.Event("ResourceClaim", "claim-known", "RecordUnreadable"); event.InvolvedObject.UID != "known" {
		t.Errorf("the Event's claim has UID %q", event.InvolvedObject.UID)
	}
	e.Event("Node", "n1", "DeviceLost")
	e.Event("Node", "n1", "HostFailure")
	e.Event("Node", "n1", "MPSDaemonDied")
	e.Metric(`gpu_dra_background_errors_total{reason="RecordUnreadable"} 1`)
}
