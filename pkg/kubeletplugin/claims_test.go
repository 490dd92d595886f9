// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	draclient "k8s.io/dynamic-resource-allocation/client"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/plan"
)

// scripted answers by the claim's name.
type scripted map[string]func() ([]devicestate.PreparedDevice, error)

func (s scripted) Prepare(_ context.Context, c *resourceapi.ResourceClaim) ([]devicestate.PreparedDevice, error) {
	return s[c.Name]()
}

func (s scripted) Unprepare(_ context.Context, c plan.Claim) error {
	_, err := s[c.Name]()
	return err
}

type told struct{ absent, released int }

func (b *bench) service(engine preparer) (*service, *told) {
	n := &told{}
	return &service{
		engine: engine, metrics: b.metrics, events: b.events, status: newStatusWriter(claimStatuses{b.client, draclient.New(b.client)}, "gpu.nvidia.com", b.metrics),
		ready: func(context.Context) error { return nil }, absent: func() { n.absent++ }, released: func() { n.released++ },
		holds: func([]devicestate.PreparedDevice) {},
	}, n
}

func claimNamed(name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Status: resourceapi.ResourceClaimStatus{ReservedFor: []resourceapi.ResourceClaimConsumerReference{
			{Resource: "pods", Name: "pod-" + name, UID: "p"}, {APIGroup: "batch", Resource: "jobs", Name: "job-" + name},
		}},
	}
}

func fine() ([]devicestate.PreparedDevice, error) {
	return []devicestate.PreparedDevice{{
		Device:      plan.Device{Request: "r/alternative", Pool: "n1/gpu", Name: "gpu-0000-1b-00-0", ShareID: "s-1"},
		CDIDeviceID: "k8s.gpu.nvidia.com/claim=x",
	}}, nil
}

func broken() ([]devicestate.PreparedDevice, error) {
	var none []devicestate.PreparedDevice
	return none[1:2], nil
}

func TestABugInOneClaimIsThatClaimsError(t *testing.T) {
	b := newBench(t)
	s, _ := b.service(scripted{"good": fine, "bad": broken})
	prepared, err := s.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claimNamed("good"), claimNamed("bad")})
	if err != nil {
		t.Fatal(err)
	}
	if r := prepared["uid-good"]; r.Err != nil || len(r.Devices) != 1 {
		t.Errorf("the good claim: %+v", r)
	}
	if err := prepared["uid-bad"].Err; claimerror.ReasonOf(err) != claimerror.InternalFault || strings.Contains(err.Error(), "runtime error") {
		t.Errorf("the bad claim: %v", err)
	}
	b.event("ResourceClaim", "bad", "InternalFault")
	b.event("Pod", "pod-bad", "InternalFault")
	b.counted(`nvidia_dra_node_prepare_errors_total{driver="gpu.nvidia.com",error_type="InternalFault"} 1`)

	object := func(name string) draplugin.NamespacedObject {
		o := draplugin.NamespacedObject{UID: types.UID("uid-" + name)}
		o.Namespace, o.Name = "ns", name
		return o
	}
	unprepared, err := s.UnprepareResourceClaims(t.Context(), []draplugin.NamespacedObject{object("good"), object("bad")})
	if err != nil || unprepared["uid-good"] != nil || claimerror.ReasonOf(unprepared["uid-bad"]) != claimerror.InternalFault {
		t.Errorf("unprepare: %v %v", unprepared, err)
	}
	b.counted(`nvidia_dra_node_unprepare_errors_total{driver="gpu.nvidia.com",error_type="InternalFault"} 1`)
}

func TestTheAnswerNamesRequestShareAndCDIDevice(t *testing.T) {
	d, _ := fine()
	got := answer(d[0])
	if got.Requests[0] != "r/alternative" || got.ShareID == nil || *got.ShareID != "s-1" || got.CDIDeviceIDs[0] != "k8s.gpu.nvidia.com/claim=x" {
		t.Errorf("%+v", got)
	}
	d[0].ShareID = ""
	if got := answer(d[0]); got.ShareID != nil {
		t.Errorf("a device that is not shared has share %q", *got.ShareID)
	}
}

func TestAFailureSaysWhereToLookAndWhoIsAskedNext(t *testing.T) {
	b := newBench(t)
	lost := func() ([]devicestate.PreparedDevice, error) {
		return nil, &claimerror.Error{Reason: claimerror.DeviceLost, Attempt: "prepare", Cause: errors.New("GPU is lost"), Remedy: "reset it"}
	}
	s, n := b.service(scripted{"lost": lost, "good": fine})
	r, _ := s.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claimNamed("lost")})
	if r["uid-lost"].Err == nil || n.absent != 1 {
		t.Errorf("answer %v; inventory was asked %d times", r["uid-lost"].Err, n.absent)
	}
	if e := b.event("Pod", "pod-lost", "DeviceLost"); !strings.Contains(e.Message, "GPU is lost; reset it") || e.Type != "Warning" {
		t.Errorf("Event %s %q", e.Type, e.Message)
	}
	if err := s.unprepare(t.Context(), plan.Claim{Namespace: "ns", Name: "lost", UID: "uid-lost"}); err == nil || n.released != 0 {
		t.Errorf("unprepare: %v, released %d", err, n.released)
	}
	if err := s.unprepare(t.Context(), plan.Claim{Namespace: "ns", Name: "good", UID: "uid-good"}); err != nil || n.released != 1 {
		t.Errorf("unprepare: %v, released %d", err, n.released)
	}
	s.ready = func(context.Context) error { return errors.New("not yet") }
	if r, _ := s.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claimNamed("good")}); r["uid-good"].Err == nil {
		t.Error("prepared before the plugin was ready")
	}
}

func TestAHealthReportThatMeetsABugEndsOnlyItsStream(t *testing.T) {
	s := &service{health: func(context.Context, chan<- draplugin.DeviceHealthReport) error { panic("bug") }}
	if err := s.WatchHealthStatus(t.Context(), nil); err == nil {
		t.Error("no error")
	}
}

func TestEventsStayWithinTheAPIsLimits(t *testing.T) {
	b := newBench(t)
	c := claimNamed("many")
	c.Status.ReservedFor = nil
	for i := range 100 {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: fmt.Sprintf("p%d", i), UID: types.UID(fmt.Sprint(i)),
		})
	}
	b.events.claimFailed(c, errors.New(strings.Repeat("ä", maxMessage)))
	b.event("Pod", fmt.Sprintf("p%d", maxPods-1), "HostFailure")
	list, err := b.client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != maxPods+1 {
		t.Errorf("%d Events, want one for the claim and %d for pods", len(list.Items), maxPods)
	}
	for _, e := range list.Items {
		if len(e.Message) > maxMessage || !strings.HasSuffix(e.Message, "ä…") {
			t.Fatalf("message of %d bytes, ending %q", len(e.Message), e.Message[len(e.Message)-8:])
		}
	}
}

func TestReportsFindTheirClaimOrTheNode(t *testing.T) {
	b := newBench(t, claimNamed("known"))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		b.events.run(ctx)
		close(done)
	}()
	p := New(Options{Node: "n1"})
	report := func(claim string, reason claimerror.Reason) {
		p.Report(&claimerror.Error{Reason: reason, Attempt: "look", Claim: claim, Cause: errors.New("x")})
	}
	report("ns/known", claimerror.RecordUnreadable) // before there is anybody to tell
	p.startReports(b.events)
	report("ns/unknown", claimerror.DeviceLost)
	report("UID 123", claimerror.HostFailure)
	p.Report(errors.New("of no kind"))
	if e := b.event("ResourceClaim", "known", "RecordUnreadable"); e.InvolvedObject.UID != "uid-known" {
		t.Errorf("the Event's claim has UID %q", e.InvolvedObject.UID)
	}
	b.event("Node", "n1", "DeviceLost")
	b.event("Node", "n1", "HostFailure")
	b.counted(`gpu_dra_background_errors_total{reason="RecordUnreadable"} 1`)
	stop()
	<-done
}
