// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

func TestReservations_Annotations_CountForABoundedTime(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	key := func(name string) string { return wire.ReservationAnnotation("gpu.nvidia.com", name) }
	all, err := wire.ParseReservations("gpu.nvidia.com", map[string]string{
		key("gpu-0000-1b-00-0"): "2026-01-01T12:02:00Z", key("gpu-0000-43-00-0"): "2026-01-01T12:00:00Z", key("gpu-0000-52-00-0"): "soon",
		key("gpu-0000-61-00-0"): "2026-01-01T12:11:00Z", key("first"): "2026-01-01T12:02:00Z",
		wire.ReservationAnnotation("other.example.com", "gpu-0000-71-00-0"): "2026-01-01T12:02:00Z",
	})
	for _, part := range []string{key("gpu-0000-52-00-0"), `"soon"`, `"first"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v lacks %s", err, part)
		}
	}
	for _, c := range []struct {
		after, next time.Duration
		want        []string
	}{
		{0, time.Minute, []string{"0000:1b:00.0"}},
		{time.Minute, 2 * time.Minute, []string{"0000:1b:00.0", "0000:61:00.0"}},
		{2 * time.Minute, 11 * time.Minute, []string{"0000:61:00.0"}},
		{11 * time.Minute, 0, nil},
	} {
		got, next := all.At(now.Add(c.after))
		if c.next == 0 != next.IsZero() || c.next != 0 && !next.Equal(now.Add(c.next)) || !got.Equal(sets.New(c.want...)) {
			t.Errorf("after %s: %v until %s", c.after, sets.List(got), next)
		}
	}
}

// TestBuild_ReservedGPU_NoNewClaimGetsAPartOfIt reserves the second of eight GPUs. Its partitions and groups are tainted and
// stay published. An API server without taints ignores it.
func TestBuild_ReservedGPU_NoNewClaimGetsAPartOfIt(t *testing.T) {
	const address = "0000:11:00.0"
	for _, o := range []resourceslices.Options{{Taints: true, SharedDevices: true, Counters: true}, {Taints: true}, {Counters: true}, {}} {
		o.Node = "n1"
		s := hgx(8, layouttest.H100())
		before, _ := resourceslices.Build(s, nil, o)
		o.Reserved = sets.New(address, "0000:ff:00.0")
		after, _ := resourceslices.Build(s, nil, o)
		got := devices(after)
		for name, want := range devices(before) {
			d, err := gpu.ParseName(name)
			if err != nil {
				t.Fatal(err)
			}
			if o.Taints && (d.Kind == gpu.KindGroup && slices.Contains([]string{pair0, quad0, octet}, name) ||
				d.Kind != gpu.KindGroup && d.Kind != gpu.KindMonitor && d.PCIAddress == address) {
				want.Taints = append(want.Taints, resourceapi.DeviceTaint{Key: wire.ReservedTaint, Effect: noSchedule})
			}
			if diff := cmp.Diff(want, got[name]); diff != "" {
				t.Errorf("taints %v, %s (-want +got)\n%s", o.Taints, name, diff)
			}
		}
	}
}
