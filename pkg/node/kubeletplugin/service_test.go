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
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpu-dra-driver/internal/notify"
	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/health/watcher"
	"gpu-dra-driver/pkg/node/kubeletplugin/publishing"
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

// newService returns a service whose recovery and first scan are done.
func newService(e *env.Env, engine preparer) *service {
	s := &service{
		engine: engine, metrics: e.Metrics, events: newEvents(e),
		status:   reporting.NewClaimStatus(e.Client, env.Driver, e.Metrics),
		recovery: &recovery{done: make(chan struct{})}, inventory: inventory.New(inventory.Options{}), changes: newChanges(),
	}
	close(s.recovery.done)
	s.devicePlugins = s.recovery.done
	s.inventory.Scans.Set(gpu.Snapshot{})
	return s
}

func newChanges() *changes {
	return &changes{
		node:    publishing.NewNode(env.Node, notify.NewTrigger(), publishing.NodeOptions{}),
		watcher: watcher.New(watcher.Options{Locks: watcher.NewLocks()}), unneeded: notify.NewTrigger(),
	}
}

// fired reports whether a Trigger was fired since the last call.
func fired(t notify.Trigger) bool {
	select {
	case <-t:
		return true
	default:
		return false
	}
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
	s := newService(e, scripted{"claim-good": fine, "claim-bad": broken})
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
	s := newService(e, scripted{"claim-lost": lost, "claim-good": fine})
	r, _ := s.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claimed("lost")})
	if r["lost"].Err == nil || !fired(s.inventory.Trigger) {
		t.Errorf("answer %v; want a scan", r["lost"].Err)
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
	if err := s.unprepare(t.Context(), plan.Claim{Namespace: "ns", Name: "claim-lost", UID: "lost"}); err == nil || fired(s.changes.unneeded) {
		t.Errorf("unprepare: %v, or released", err)
	}
	if err := s.unprepare(t.Context(), plan.Claim{Namespace: "ns", Name: "claim-good", UID: "good"}); err != nil || !fired(s.changes.unneeded) {
		t.Errorf("unprepare: %v, or not released", err)
	}
	s.recovery.done = make(chan struct{})
	if r, _ := s.PrepareResourceClaims(late, []*resourceapi.ResourceClaim{claimed("good")}); r["good"].Err == nil {
		t.Error("prepared before the plugin was ready")
	}
}

func TestWatchHealthStatus_Panic_EndsTheStreamOnly(t *testing.T) {
	s := &service{} // Without a publisher it panics.
	if err := s.WatchHealthStatus(t.Context(), nil); err == nil {
		t.Error("no error")
	}
}
