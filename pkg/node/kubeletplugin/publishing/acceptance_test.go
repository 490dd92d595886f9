// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/pkg/claim/claimerror"
)

// refusing is an API server that refuses slices.
type refusing struct {
	testPublisher
	mu sync.Mutex
	// refuse returns the refusal of a slice.
	refuse  func(resourceapi.ResourceSlice) error
	dryRuns int
	errs    []error
}

// Report implements notify.Reporter.
func (r *refusing) Report(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

func (r *refusing) reported() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.errs
}

func (r *refusing) set(refuse func(resourceapi.ResourceSlice) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = refuse
}

func newRefusing(t *testing.T) *refusing {
	r := &refusing{testPublisher: newTestPublisher(t, features{}), refuse: func(resourceapi.ResourceSlice) error { return nil }}
	r.o.Reports = r
	answer := func(a clienttesting.Action) (bool, runtime.Object, error) {
		create, isCreate := a.(clienttesting.CreateActionImpl)
		s, ok := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		if !ok {
			return false, nil, nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if isCreate && len(create.CreateOptions.DryRun) > 0 {
			r.dryRuns++
		}
		err := r.refuse(*s)
		return err != nil, nil, err
	}
	r.Client.PrependReactor("create", "resourceslices", answer)
	r.Client.PrependReactor("update", "resourceslices", answer)
	return r
}

var invalid = apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "x", nil)

// bad refuses slices with a device that has this attribute.
func bad(err error) func(resourceapi.ResourceSlice) error {
	return func(s resourceapi.ResourceSlice) error {
		for _, d := range s.Spec.Devices {
			if _, ok := d.Attributes["bad"]; ok {
				return err
			}
		}
		return nil
	}
}

func device(name string, attributes ...string) resourceapi.Device {
	kind, _, _ := strings.Cut(name, "-")
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}}}
	for _, a := range attributes {
		d.Attributes[resourceapi.QualifiedName(a)] = resourceapi.DeviceAttribute{BoolValue: new(true)}
	}
	return d
}

func tainted(d resourceapi.Device) resourceapi.Device {
	d.Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/unhealthy", Value: "lost", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	return d
}

func consuming(d resourceapi.Device) resourceapi.Device {
	d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{
		CounterSet: "set", Counters: map[string]resourceapi.Counter{"c": {Value: resource.MustParse("1")}},
	}}
	return d
}

var counterSlice = resourceslice.Slice{SharedCounters: []resourceapi.CounterSet{{
	Name: "set", Counters: map[string]resourceapi.Counter{"c": {Value: resource.MustParse("8")}},
}}}

// slicesWith returns slices of devices.
func slicesWith(slices ...[]resourceapi.Device) (out []resourceslice.Slice) {
	for _, devices := range slices {
		out = append(out, resourceslice.Slice{Devices: devices})
	}
	return out
}

type devices = []resourceapi.Device

// want waits until the API server has the devices, each with its attributes and taints, in pools with all slices.
func (r *refusing) want(slices ...resourceslice.Slice) {
	r.Helper()
	text := func(d resourceapi.Device) string {
		return fmt.Sprint(d.Name, " ", len(d.Attributes), " ", len(d.Taints), " ", len(d.ConsumesCounters))
	}
	want := sets.New[string]()
	for _, s := range slices {
		for _, d := range s.Devices {
			want.Insert(text(d))
		}
	}
	r.Eventually(fmt.Sprint(sets.List(want)), func() (bool, string) {
		got, whole := sets.New[string](), true
		found := r.Slices()
		for _, s := range found {
			whole = whole && s.Spec.Pool.Generation == found[0].Spec.Pool.Generation && int(s.Spec.Pool.ResourceSliceCount) == len(found)
			for _, d := range s.Spec.Devices {
				got.Insert(text(d))
			}
		}
		return whole && got.Equal(want), fmt.Sprint(sets.List(got), ", complete: ", whole)
	})
}

// TestPublisher_ServerRefusesForm_CostsThatDeviceOnly changes two slices at once. The controller alone leaves an incomplete pool, or deletes
// slices.
func TestPublisher_ServerRefusesForm_CostsThatDeviceOnly(t *testing.T) {
	t.Parallel()
	accepted := slicesWith(devices{device("gpu-0"), device("gpu-1")}, devices{device("mig-0"), device("mig-1")})
	for name, c := range map[string]struct {
		before, wanted, want []resourceslice.Slice
		refuse               func(resourceapi.ResourceSlice) error
		text                 string
		kept                 bool
	}{
		"keeps its last form": {
			before: accepted, wanted: slicesWith(devices{device("gpu-0", "bad"), device("gpu-1", "new")}, devices{device("mig-0", "new"), device("mig-1")}),
			want: slicesWith(devices{device("gpu-0"), device("gpu-1", "new")}, devices{device("mig-0", "new"), device("mig-1")}),
			text: "publish failed for gpu-0: ",
		},
		"gets the taints of its present one": {
			before: accepted, wanted: slicesWith(devices{tainted(device("gpu-0", "bad")), device("gpu-1")}, devices{device("mig-0", "new")}),
			want: slicesWith(devices{tainted(device("gpu-0")), device("gpu-1")}, devices{device("mig-0", "new")}),
		},
		"is new": {
			before: nil, wanted: slicesWith(devices{device("gpu-0", "bad"), device("gpu-1")}, devices{device("mig-0", "new")}),
			want: slicesWith(devices{device("gpu-1")}, devices{device("mig-0", "new")}),
		},
		"is the only one of its slice": {
			before: nil, wanted: slicesWith(devices{device("gpu-0"), device("gpu-1")}, devices{device("mig-0", "bad")}),
			want: slicesWith(devices{device("gpu-0"), device("gpu-1")}),
		},
		"by an admission policy": {
			before: accepted, wanted: slicesWith(devices{device("gpu-0", "new"), device("gpu-1", "bad")}, devices{device("mig-0", "new"), device("mig-1", "bad")}),
			want:   slicesWith(devices{device("gpu-0", "new"), device("gpu-1")}, devices{device("mig-0", "new"), device("mig-1")}),
			refuse: bad(apierrors.NewForbidden(schema.GroupResource{Resource: "resourceslices"}, "", errors.New("policy"))), text: "gpu-1 and 1 others",
		},
		"would overlap others without its last counters": {
			before: accepted, wanted: append(slicesWith(devices{consuming(device("gpu-0", "bad")), device("gpu-1", "new")}, devices{consuming(device("mig-0"))}), counterSlice),
			want: accepted, kept: true,
		},
		"was never published, and its counters are": {
			before: append(slicesWith(devices{device("gpu-1")}, devices{consuming(device("mig-0"))}), counterSlice),
			wanted: append(slicesWith(devices{consuming(device("gpu-0", "bad")), device("gpu-1", "new")}, devices{consuming(device("mig-0", "new"))}), counterSlice),
			want:   append(slicesWith(devices{device("gpu-1", "new")}, devices{consuming(device("mig-0", "new"))}), counterSlice),
		},
		"has no accepted form any more": {
			before: accepted, wanted: slicesWith(devices{device("gpu-0", "x"), device("gpu-1", "new")}, devices{device("mig-0", "new")}), want: accepted, kept: true,
			refuse: func(s resourceapi.ResourceSlice) error {
				for _, d := range s.Spec.Devices {
					if d.Name == "gpu-0" {
						return invalid
					}
				}
				return nil
			},
		},
		"is refused with others only": {
			before: accepted, wanted: slicesWith(devices{device("gpu-0"), device("gpu-1"), device("gpu-2")}, devices{device("mig-0", "new")}), want: accepted, kept: true,
			refuse: func(s resourceapi.ResourceSlice) error {
				if len(s.Spec.Devices) > 2 {
					return apierrors.NewRequestEntityTooLargeError("limit is 3145728")
				}
				return nil
			},
			text: "publish failed for slices of pool n1/gpu: ",
		},
		"needs counters that are refused": {
			before: nil, wanted: append(slicesWith(devices{device("gpu-0")}, devices{consuming(device("mig-0"))}), counterSlice), want: slicesWith(devices{device("gpu-0")}),
			refuse: func(s resourceapi.ResourceSlice) error {
				if len(s.Spec.SharedCounters) > 0 {
					return invalid
				}
				return nil
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRefusing(t)
			var mu sync.Mutex
			now := c.before
			r.node = slicesOf(func(features) ([]resourceslice.Slice, bool) {
				mu.Lock()
				defer mu.Unlock()
				return now, true
			})
			if c.before != nil {
				r.Go(r.Run)
				r.want(c.before...)
				r.watched()
			}
			if c.refuse == nil {
				c.refuse = bad(invalid)
			}
			r.set(c.refuse)
			mu.Lock()
			now = c.wanted
			mu.Unlock()
			if c.before == nil {
				r.Go(r.Run)
			}
			r.triggered.Fire()
			r.Eventually("a report", func() (bool, string) { return len(r.reported()) > 0, "none" })
			r.want(c.want...)
			err := r.reported()[0]
			if claimerror.ReasonOf(err) != claimerror.PublishRefused || !strings.Contains(err.Error(), c.text) || len(err.Error()) > 1024 {
				t.Errorf("reported: %v", err)
			}
			if !strings.Contains(r.MetricsText(), "gpu_dra_refused_devices{") {
				t.Error("no metric")
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.Publisher.mu.Lock()
			defer r.Publisher.mu.Unlock()
			if r.kept != c.kept {
				t.Errorf("the pool was kept: %v", r.kept)
			}
		})
	}
}

func pools(p *Publisher, slices ...resourceslice.Slice) map[string]resourceslice.Pool {
	return map[string]resourceslice.Pool{p.pool: {Slices: slices}}
}

// TestSettle_Answers_OnlyRefusalsReplaceDevices has errors that say nothing about the slices.
func TestSettle_Answers_OnlyRefusalsReplaceDevices(t *testing.T) {
	t.Parallel()
	group := schema.GroupResource{Resource: "resourceslices"}
	for name, c := range map[string]struct {
		err     error
		refuses bool
	}{
		"invalid":    {invalid, true},
		"forbidden":  {apierrors.NewForbidden(group, "", nil), true},
		"too large":  {apierrors.NewRequestEntityTooLargeError(""), true},
		"a webhook":  {&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Reason: "x"}}, true},
		"no dry run": {apierrors.NewBadRequest("webhook does not support dry run"), false},
		"busy":       {apierrors.NewTooManyRequests("", 1), false},
		"broken":     {apierrors.NewInternalError(errors.New("etcd")), false},
		"no access":  {apierrors.NewUnauthorized(""), false},
		"timeout":    {apierrors.NewServerTimeout(group, "create", 1), false},
		"conflict":   {apierrors.NewConflict(group, "", nil), false},
		"away":       {errors.New("connection refused"), false},
		"cancelled":  {context.DeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRefusing(t)
			r.set(bad(c.err))
			wanted := pools(r.Publisher, slicesWith(devices{device("gpu-0", "bad"), device("gpu-1")})...)
			out, kept := (&acceptance{p: r.Publisher}).settle(t.Context(), wanted)
			if n := len(out[r.pool].Slices[0].Devices); n != 2 && !c.refuses || n != 1 && c.refuses || len(kept) > 0 {
				t.Errorf("%d devices, kept %v", n, kept)
			}
			if (len(r.errs) > 0) != c.refuses {
				t.Errorf("reported: %v", r.errs)
			}
		})
	}
}

// TestSettle_PolicyEnds_PublishesAgain has unchanged slices asked about only once, and refused ones again after minutes.
func TestSettle_PolicyEnds_PublishesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefusing(t)
		a := &acceptance{p: r.Publisher}
		wanted := pools(r.Publisher, slicesWith(devices{device("gpu-0", "bad"), device("gpu-1")}, devices{device("mig-0")})...)
		settle := func(devices int) {
			t.Helper()
			out, _ := a.settle(t.Context(), wanted)
			if n := len(out[r.pool].Slices[0].Devices); n != devices {
				t.Errorf("%d devices, want %d", n, devices)
			}
		}
		r.set(bad(invalid))
		settle(1)
		asked := r.dryRuns
		settle(1)
		if r.dryRuns != asked || len(r.errs) != 1 {
			t.Errorf("%d questions, then %d; %d reports", asked, r.dryRuns, len(r.errs))
		}
		time.Sleep(time.Hour) // The Event has ended.
		settle(1)
		if len(r.errs) != 2 {
			t.Errorf("%d reports within an hour", len(r.errs))
		}
		r.set(bad(nil))
		settle(1)
		time.Sleep(rebuildInterval)
		settle(2)
		if text := r.MetricsText(); strings.Contains(text, "gpu_dra_refused_devices{") {
			t.Error("the metric stays")
		}
		// The policy is back, and refuses what was accepted.
		r.set(bad(invalid))
		settle(2)
		r.failed(t.Context(), fmt.Errorf("update: %w", invalid), "processing")
		settle(1)
		if len(r.errs) != 3 {
			t.Errorf("%d reports", len(r.errs))
		}
	})
}

// TestSettle_RandomRefusals_NoDeviceLostOrUnaccepted compares the result with what the server accepts and what was published.
func TestSettle_RandomRefusals_NoDeviceLostOrUnaccepted(t *testing.T) {
	t.Parallel()
	keptPools := 0
	for seed := range seedtest.Each(t, 300) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := newRefusing(t)
		form := func(name string) resourceapi.Device {
			d := device(name, []string{"a", "b", "c", "d"}[:random.IntN(5)]...)
			if random.IntN(8) == 0 {
				d = tainted(d)
			}
			if random.IntN(12) == 0 {
				d = consuming(d)
			}
			return d
		}
		node := func() (out []resourceslice.Slice) {
			for _, kind := range []string{"gpu", "mig"} {
				var of devices
				for n := range 6 {
					if random.IntN(4) > 0 {
						of = append(of, form(fmt.Sprint(kind, "-", n)))
					}
				}
				if len(of) > 0 {
					out = append(out, resourceslice.Slice{Devices: of})
				}
			}
			return append(out, counterSlice)
		}
		refused := []string{"a", "b", "c", "d"}[random.IntN(4)]
		only := fmt.Sprint("-", random.IntN(6))
		refuses := func(s resourceapi.ResourceSlice) error {
			for _, d := range s.Spec.Devices {
				if _, has := d.Attributes[resourceapi.QualifiedName(refused)]; has && strings.HasSuffix(d.Name, only) {
					return invalid
				}
			}
			return nil
		}
		before, wanted := node(), node()
		for i, s := range before {
			if _, err := r.Client.ResourceV1().ResourceSlices().Create(t.Context(), r.object(i, r.pool, len(before), s), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		r.set(refuses)
		out, kept := (&acceptance{p: r.Publisher}).settle(t.Context(), pools(r.Publisher, wanted...))
		if kept[r.pool] {
			keptPools++
			if diff := cmp.Diff(len(before), len(out[r.pool].Slices)); diff != "" {
				t.Errorf("seed %d: the kept pool has other slices: %s", seed, diff)
			}
			continue
		}
		was, has := map[string]resourceapi.Device{}, map[string]resourceapi.Device{}
		for _, s := range before {
			for _, d := range s.Devices {
				was[d.Name] = d
			}
		}
		for i, s := range out[r.pool].Slices {
			if err := refuses(*r.object(i, r.pool, 1, s)); err != nil {
				t.Errorf("seed %d: slice %d is refused", seed, i)
			}
			for _, d := range s.Devices {
				has[d.Name] = d
			}
		}
		for _, s := range wanted {
			for _, d := range s.Devices {
				got, published := has[d.Name]
				_, known := was[d.Name]
				if known && !published || published && len(got.ConsumesCounters) != len(d.ConsumesCounters) ||
					!strings.HasSuffix(d.Name, only) && cmp.Diff(got, d) != "" {
					t.Errorf("seed %d: %s is %+v, want %+v or %+v", seed, d.Name, got, d, was[d.Name])
				}
			}
		}
	}
	if !testing.Short() && (keptPools == 0 || keptPools > 200) {
		t.Errorf("%d of 300 pools were kept", keptPools)
	}
}
