// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/inventory"
	"gpu-dra-driver/pkg/plan"
)

func TestFindingsAreToldOnceAndCounted(t *testing.T) {
	b := newBench(t)
	released := 0
	c := newCaretaker(nil, nil, nil, b.metrics, b.events, func() { released++ }, nil)
	named, nameless := plan.Claim{Namespace: "ns", Name: "one", UID: "u1"}, plan.Claim{UID: "u2"}
	stuck := []devicestate.Finding{
		{Claim: named, Found: "releasing", Err: errors.New("disk full")},
		{Claim: nameless, Found: "unknown", Err: errors.New("API away")},
		{Claim: plan.Claim{UID: "u3"}, Found: "committed"}, // nothing to tell
	}
	for range 3 {
		if c.tell(t.Context(), stuck) {
			t.Error("what failed counts as done")
		}
	}
	b.event("ResourceClaim", "one", "HostFailure")
	if e := b.event("Node", "n1", "HostFailure"); !strings.Contains(e.Message, "UID u2") || !strings.Contains(e.Message, "API away") {
		t.Errorf("Event %q", e.Message)
	}
	b.counted(`gpu_dra_recoveries_total{found="releasing",result="error"} 3`)
	if e := b.event("ResourceClaim", "one", "HostFailure"); e.Count > 1 {
		t.Errorf("told %d times", e.Count)
	}
	if !c.tell(t.Context(), []devicestate.Finding{{Claim: named, Found: "releasing", Did: "undone"}}) || released != 1 {
		t.Errorf("released %d times", released)
	}
	b.counted(`gpu_dra_recoveries_total{found="releasing",result="done"} 1`)
	if !c.say("u1", "disk full") {
		t.Error("what comes back is not told again")
	}
	said := &claimerror.Error{Reason: claimerror.DeviceLost, Cause: errors.New("x")}
	if got := wrapped(devicestate.Finding{Err: said}); !errors.Is(got, said) || claimerror.ReasonOf(got) != claimerror.DeviceLost {
		t.Errorf("what is typed already became %v", got)
	}
}

func TestPrepareWaitsForTheFirstRecoverAndHearsWhyThereIsNone(t *testing.T) {
	dir := t.TempDir()
	h := host.New(host.Options{BootIDFile: filepath.Join(dir, "absent")})
	t.Cleanup(h.Close)
	engine, err := devicestate.Open(devicestate.Options{Host: h, Dir: dir, Specs: store.New(h, dir, "d"), Driver: "d", Pool: "p"})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	c := newCaretaker(engine, nil, nil, b.metrics, b.events, func() {}, nil)
	if err := c.waitRecovered(t.Context(), time.Millisecond); err == nil {
		t.Error("served before Recover")
	}
	if c.recover(t.Context()) {
		t.Error("clean without a boot ID")
	}
	if err := c.waitRecovered(t.Context(), time.Millisecond); err == nil || !strings.Contains(err.Error(), "boot ID") {
		t.Errorf("the reason is not told: %v", err)
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errStopping)
	if err := c.waitRecovered(gone, time.Minute); !errors.Is(err, errStopping) {
		t.Errorf("the caller is gone: %v", err)
	}
	close(c.recovered)
	if err := c.waitRecovered(gone, time.Minute); err != nil {
		t.Error(err)
	}
	p := New(Options{Node: "n1"})
	if err := p.ready(c)(gone); claimerror.KindOf(err) != claimerror.Transient || !strings.Contains(err.Error(), "just started") {
		t.Errorf("before the first look: %v", err)
	}
}

// holding is a holder with an answer.
type holding struct {
	plans []plan.Plan
	blind bool
	err   error
}

func (h holding) Held() ([]plan.Plan, bool, error) { return h.plans, h.blind, h.err }

func (n *node) names(t *testing.T) (names []string) {
	t.Helper()
	slices, ok := n.build(features{}) // Without taints, what may not be given out is not there.
	if !ok {
		t.Fatal("nothing was built")
	}
	for _, s := range slices {
		for _, d := range s.Devices {
			names = append(names, d.Name)
		}
	}
	return names
}

func TestWhatIsPublishedOfHeldLostAndUnknown(t *testing.T) {
	var reports []error
	changes := 0
	n := newNode("n1", func(err error) { reports = append(reports, err) })
	n.changed = func() { changes++ }
	n.holder = holding{}
	if _, ok := n.build(allFeatures); ok {
		t.Error("slices without a look")
	}
	if err := n.waitLooked(t.Context(), time.Millisecond); err == nil {
		t.Error("looked without a look")
	}
	both := gpu.Snapshot{Driver: gpu.Driver{Version: "580.1"}, GPUs: []gpu.GPU{
		{PCIAddress: "0000:1b:00.0", UUID: "GPU-a", ProductName: "NVIDIA H100"}, {PCIAddress: "0000:2b:00.0", UUID: "GPU-b"},
	}}
	if err := n.found(t.Context(), both, nil); err != nil || changes != 1 {
		t.Fatal(err, changes)
	}
	if err := n.waitLooked(t.Context(), time.Millisecond); err != nil {
		t.Error(err)
	}
	const a, b = "gpu-0000-1b-00-0", "gpu-0000-2b-00-0"
	held := []plan.Plan{{Devices: []plan.Device{{Kind: gpu.KindGPU, PCIAddress: "0000:1b:00.0", UUID: "GPU-a"}}}}
	for name, tc := range map[string]struct {
		holder holding
		want   string
	}{
		"nothing held":                   {holding{}, a + " " + b},
		"one held":                       {holding{plans: held}, a + " " + b},
		"one held, one may be":           {holding{plans: held, blind: true}, a},
		"any may be held":                {holding{blind: true}, ""},
		"a device of another node's bus": {holding{plans: []plan.Plan{{Devices: []plan.Device{{Kind: gpu.KindGPU, PCIAddress: "0000:3b:00.0"}}}}}, a + " " + b + " gpu-0000-3b-00-0"},
	} {
		n.holder = tc.holder
		if got := strings.Join(n.names(t), " "); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	// The driver goes while a claim holds a GPU: it stays as it was, and its release is news.
	n.holder = holding{plans: held}
	if err := n.found(t.Context(), gpu.Snapshot{}, inventory.ErrNoDriver); err != nil {
		t.Error(err)
	}
	if got := strings.Join(n.names(t), " "); got != a {
		t.Errorf("without the driver: %q, want the one that is held", got)
	}
	slices, _ := n.build(allFeatures)
	if name := slices[0].Devices[0].Attributes["productName"].StringValue; name == nil || *name != "NVIDIA H100" {
		t.Errorf("a held GPU lost its attributes: %v", name)
	}
	before := changes
	n.released()
	if changes != before+1 {
		t.Error("a release that changes the slices is not told")
	}
	n.holder = holding{}
	n.names(t)
	n.released()
	if changes != before+1 {
		t.Error("a release that changes nothing is told")
	}
	// Records that cannot be read withdraw nothing and are reported.
	reports, n.holder = nil, holding{err: errors.New("disk")}
	if _, ok := n.build(allFeatures); ok || len(reports) != 1 {
		t.Errorf("built without knowing what is held; reports %v", reports)
	}
	if err := n.found(t.Context(), both, errors.New("NVML failed")); err != nil || len(reports) != 2 {
		t.Errorf("%v, reports %v", err, reports)
	}
	if err := n.found(t.Context(), gpu.Snapshot{}, nvml.ErrReplaced); !errors.Is(err, nvml.ErrReplaced) {
		t.Errorf("a replaced driver does not end the plugin: %v", err)
	}
}
