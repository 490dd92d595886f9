// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	draclient "k8s.io/dynamic-resource-allocation/client"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	env "gpu-dra-driver/pkg/node/kubeletplugin/kubeletplugintest"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
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

// counts are calls of the service's functions.
type counts struct{ absent, released int }

func newService(e *env.Env, engine preparer) (*service, *counts) {
	n := &counts{}
	return &service{
		engine: engine, metrics: e.Metrics, events: newEvents(e),
		status: reporting.NewClaimStatus(e.Client, draclient.New(e.Client), env.Driver, e.Metrics),
		ready:  func(context.Context) error { return nil }, absent: func() { n.absent++ }, released: func() { n.released++ },
		prepared: func([]devicestate.PreparedDevice) {},
	}, n
}

func newEvents(e *env.Env) *reporting.Events {
	events := reporting.NewEvents(e.Client, env.Node, env.Driver, e.Metrics)
	e.Go(events.Run)
	return events
}

func claimed(uid string) *resourceapi.ResourceClaim { return env.Claim(uid, "", "") }

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

func TestService_PanicInOneClaim_FailsThatClaimOnly(t *testing.T) {
	e := env.New(t)
	s, _ := newService(e, scripted{"claim-good": fine, "claim-bad": broken})
	prepared, err := s.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claimed("good"), claimed("bad")})
	if err != nil {
		t.Fatal(err)
	}
	if r := prepared["good"]; r.Err != nil || len(r.Devices) != 1 {
		t.Errorf("the good claim: %+v", r)
	}
	if err := prepared["bad"].Err; claimerror.ReasonOf(err) != claimerror.InternalFault || strings.Contains(err.Error(), "runtime error") {
		t.Errorf("the bad claim: %v", err)
	}
	e.Event("ResourceClaim", "claim-bad", "InternalFault")
	e.Metric(`nvidia_dra_node_prepare_errors_total{driver="gpu.nvidia.com",error_type="InternalFault"} 1`)

	object := func(name string) draplugin.NamespacedObject {
		o := draplugin.NamespacedObject{UID: types.UID(name)}
		o.Namespace, o.Name = "ns", "claim-"+name
		return o
	}
	unprepared, err := s.UnprepareResourceClaims(t.Context(), []draplugin.NamespacedObject{object("good"), object("bad")})
	if err != nil || unprepared["good"] != nil || claimerror.ReasonOf(unprepared["bad"]) != claimerror.InternalFault {
		t.Errorf("unprepare: %v %v", unprepared, err)
	}
	e.Metric(`nvidia_dra_node_unprepare_errors_total{driver="gpu.nvidia.com",error_type="InternalFault"} 1`)
}

func TestAnswer_SharedDevice_NamesRequestShareAndCDIDevice(t *testing.T) {
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

func TestService_PrepareFails_WritesEventsAndTriggersAScan(t *testing.T) {
	e := env.New(t)
	lost := func() ([]devicestate.PreparedDevice, error) {
		return nil, &claimerror.Error{
			Reason: claimerror.DeviceLost, Attempt: "prepare", Claim: "ns/claim-lost", Device: "gpu-0000-1b-00-0",
			Cause: errors.New("GPU is lost"), Remedy: "reset it",
		}
	}
	s, n := newService(e, scripted{"claim-lost": lost, "claim-good": fine})
	r, _ := s.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claimed("lost")})
	if r["lost"].Err == nil || n.absent != 1 {
		t.Errorf("answer %v; inventory was asked %d times", r["lost"].Err, n.absent)
	}
	// The kubelet writes its answer, with the claim's name, into an Event on the pod.
	const text = "prepare failed for gpu-0000-1b-00-0: GPU is lost. Reset it"
	if answer := r["lost"].Err.Error(); answer != "DeviceLost: "+text {
		t.Errorf("answer %q", answer)
	}
	if event := e.Event("ResourceClaim", "claim-lost", "DeviceLost", text); event.Type != "Warning" || event.Message != text {
		t.Errorf("Event %s %q", event.Type, event.Message)
	}
	// The kubelet does not receive the answer to a call that it gave up.
	late, cancel := context.WithCancel(t.Context())
	cancel()
	s.PrepareResourceClaims(late, []*resourceapi.ResourceClaim{claimed("lost")})
	e.Event("Pod", "pod-lost", "DeviceLost", text)
	list, err := e.Client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Errorf("%d Events (%v), want one on the claim and one on the pod", len(list.Items), err)
	}
	if err := s.unprepare(t.Context(), plan.Claim{Namespace: "ns", Name: "claim-lost", UID: "lost"}); err == nil || n.released != 0 {
		t.Errorf("unprepare: %v, released %d", err, n.released)
	}
	if err := s.unprepare(t.Context(), plan.Claim{Namespace: "ns", Name: "claim-good", UID: "good"}); err != nil || n.released != 1 {
		t.Errorf("unprepare: %v, released %d", err, n.released)
	}
	s.ready = func(context.Context) error { return errors.New("not yet") }
	if r, _ := s.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claimed("good")}); r["good"].Err == nil {
		t.Error("prepared before the plugin was ready")
	}
}

func TestWatchHealthStatus_Panic_EndsTheStreamOnly(t *testing.T) {
	s := &service{health: func(context.Context, chan<- draplugin.DeviceHealthReport) error { panic("bug") }}
	if err := s.WatchHealthStatus(t.Context(), nil); err == nil {
		t.Error("no error")
	}
}
