// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"encoding/json"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/sim/profiles"
)

// sharesAs is a Demand with this answer for shares.
type sharesAs struct {
	sharingtest.NoDemand
	shares sharing.Placements
}

func (d sharesAs) Shares(gpu.GPU) sharing.Placements { return d.shares }

func sharesOf(t testing.TB, s gpu.Snapshot, file string, shares sharing.Placements, change ...func(*resourceslices.Options)) map[string]resourceapi.Device {
	t.Helper()
	settings, _, err := sharing.Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	change = append([]func(*resourceslices.Options){func(o *resourceslices.Options) {
		o.Sharing = sharing.Node{Name: "n1", Settings: settings, MPS: true, Demand: sharesAs{shares: shares}}
	}}, change...)
	out := map[string]resourceapi.Device{}
	for _, slice := range slicetest.Slices(s, "n1", settings, change...) {
		for _, d := range slice.Spec.Devices {
			out[d.Name] = d
		}
	}
	return out
}

const autoShares = "publish: [{shareable: Auto}]"

// TestShareable_EachBoard_AsItsNodePublishesIt has readers know the shares that a node does not publish yet.
func TestShareable_EachBoard_AsItsNodePublishesIt(t *testing.T) {
	text := func(d resourceapi.Device) string {
		out, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for _, board := range profiles.Names() {
		for _, strategy := range []string{"", "\nsharing: {strategy: TimeSlicing}", "\nsharing: {maxShares: 7}"} {
			scanned, err := slicetest.Scan(board, "n1", 1)
			if err != nil {
				t.Fatal(err)
			}
			later, now := sharesOf(t, scanned, autoShares+strategy, sharing.LaterPlacements), sharesOf(t, scanned, autoShares+strategy, sharing.AllPlacements)
			shared := 0
			for name, want := range now {
				got, ok := resourceslices.Shareable(later[name])
				if kind := *want.Attributes["type"].StringValue; ok != (want.AllowMultipleAllocations != nil && kind != "monitor") {
					t.Errorf("%s, %s: shareable later: %v, now: %v", board, name, ok, !ok)
				}
				if text(got) != text(want) {
					t.Errorf("%s, %s:\n%s\nwant\n%s", board, name, text(got), text(want))
				}
				if ok {
					shared++
				}
				if _, again := resourceslices.Shareable(got); again {
					t.Errorf("%s, %s is shareable twice", board, name)
				}
			}
			if shared == 0 || len(now) != len(later) {
				t.Errorf("%s: %d shareable devices; %d devices now, %d later", board, shared, len(now), len(later))
			}
		}
	}
}

func TestBuild_SharesEndOrAreHeld_SchedulerForgetsNone(t *testing.T) {
	s := mpsBoards(1, gpu.MIG{})
	const name = "gpu-0000-10-00-0"
	held := func(share bool) func(*resourceslices.Options) {
		return func(o *resourceslices.Options) {
			o.Held = []resourceslices.Held{{Device: gpu.Device{Kind: gpu.KindGPU, PCIAddress: s.GPUs[0].PCIAddress}, Share: share, GPU: s.GPUs[0]}}
		}
	}
	none := func(*resourceslices.Options) {}
	noTaints := func(o *resourceslices.Options) { o.Taints = false }
	for _, c := range []struct {
		when           string
		file           string
		shares         sharing.Placements
		change         func(*resourceslices.Options)
		shared, ending bool
	}{
		{"no object asks", autoShares, sharing.LaterPlacements, none, false, false},
		{"an object asks", autoShares, sharing.AllPlacements, none, true, false},
		{"no object asks any more", autoShares, sharing.EndingPlacements, none, true, true},
		{"no object asks, a claim has a share", autoShares, sharing.LaterPlacements, held(true), true, false},
		{"no object asks any more, a claim has a share", autoShares, sharing.EndingPlacements, held(true), true, false},
		{"no object asks, a claim has the GPU", autoShares, sharing.LaterPlacements, held(false), false, false},
		{"no object asks any more, a claim has the GPU", autoShares, sharing.EndingPlacements, held(false), true, true},
		{"no object asks, no taints on the server", autoShares, sharing.LaterPlacements, noTaints, true, false},
		{"no object asks, replicas", autoShares + "\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}", sharing.LaterPlacements, none, true, false},
		{"no object asks, always shared", "publish: [{shareable: All}]", sharing.LaterPlacements, none, true, false},
	} {
		d, ok := sharesOf(t, s, c.file, c.shares, c.change)[name]
		taints := 0
		for _, taint := range d.Taints {
			if taint.Value == string(resourceslices.NoDemand) {
				taints++
			}
		}
		if shared := ptr.Deref(d.AllowMultipleAllocations, false); !ok || shared != c.shared || taints == 1 != c.ending {
			t.Errorf("%s: published %v, shared %v, taints %v, want shared %v, ending %v", c.when, ok, shared, d.Taints, c.shared, c.ending)
		}
	}
}

func TestMIGLayout_SharesAskedFor_NameStays(t *testing.T) {
	s := snapshot(t, "hgx-h100", 1)
	name := func(shares sharing.Placements) string {
		for _, d := range sharesOf(t, s, "publish: [{profiles: Auto, shareable: Auto}]", shares) {
			if a, ok := d.Attributes[wire.MIGLayoutAttribute]; ok {
				return *a.StringValue
			}
		}
		return ""
	}
	if a, b := name(sharing.LaterPlacements), name(sharing.AllPlacements); a == "" || a != b {
		t.Errorf("layout %q becomes %q once an object asks for shares", a, b)
	}
}

// TestShareable_OddDevices_AreNot has what another program could publish.
func TestShareable_OddDevices_AreNot(t *testing.T) {
	whole := sharesOf(t, mpsBoards(1, gpu.MIG{}), autoShares, sharing.LaterPlacements)["gpu-0000-10-00-0"]
	if _, ok := resourceslices.Shareable(whole); !ok {
		t.Fatal("the GPU is not shareable")
	}
	for name, change := range map[string]func(*resourceapi.Device){
		"no shares": func(d *resourceapi.Device) {
			d.Attributes["maxShares"] = resourceapi.DeviceAttribute{IntValue: new(int64(0))}
		},
		"text": func(d *resourceapi.Device) {
			d.Attributes["maxShares"] = resourceapi.DeviceAttribute{StringValue: new("48")}
		},
		"no kind":    func(d *resourceapi.Device) { delete(d.Attributes, "shareIsolation") },
		"no memory":  func(d *resourceapi.Device) { d.Capacity = nil },
		"shared now": func(d *resourceapi.Device) { d.AllowMultipleAllocations = new(true) },
		"nothing":    func(d *resourceapi.Device) { *d = resourceapi.Device{} },
	} {
		d := *whole.DeepCopy()
		change(&d)
		if _, ok := resourceslices.Shareable(d); ok {
			t.Errorf("%s: shareable", name)
		}
	}
}
