// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
)

// groupsBySize returns the first group of each size.
func groupsBySize(p pool.Pool) map[int]resourceapi.Device {
	out := map[int]resourceapi.Device{}
	for d, kind := range p.Devices() {
		if _, seen := out[kind.GPUs]; kind.Type == gpu.KindGroup && !seen {
			out[kind.GPUs] = d
		}
	}
	return out
}

// TestWith_NodeWithoutGroups_KnowsThoseThatItCouldPublish compares them with the groups of the same boards that
// publish them. On bridges, the largest group of a GPU has a size of its own.
func TestWith_NodeWithoutGroups_KnowsThoseThatItCouldPublish(t *testing.T) {
	for _, board := range []string{"hgx-h100", "dgx-a100-40", "dgx-1-v100", "a100-pcie-4", "gb200-tray", "l40s-4"} {
		t.Run(board, func(t *testing.T) {
			scanned, err := slicetest.Scan(board, "n", 0)
			if err != nil {
				t.Fatal(err)
			}
			pools := map[string]pool.Pool{}
			for _, groups := range []string{"All", "None"} {
				settings, _, err := sharing.Parse([]byte("publish: [{groups: " + groups + "}]"))
				if err != nil {
					t.Fatal(err)
				}
				pools[groups] = poolOf(&pool.Shapes{}, slicetest.Slices(scanned, "n", settings))
			}
			all, none := pools["All"], pools["None"]
			if n := len(groupsBySize(none)); n != 0 {
				t.Fatalf("%d groups are published", n)
			}
			want, got := groupsBySize(all), groupsBySize(none.With(gpu.KindGroup))
			if len(got) != len(want) {
				t.Errorf("groups of %d sizes, want %d", len(got), len(want))
			}
			for size, d := range got {
				published := want[size]
				if pool.Text(d, "type") != pool.Text(published, "type") || !cmp.Equal(d.Capacity["memory"].Value, published.Capacity["memory"].Value) ||
					pool.Text(d, "productName") != pool.Text(published, "productName") {
					t.Errorf("group of %d: %+v, want %+v", size, d, published)
				}
				for name := range published.Attributes {
					if _, ok := d.Attributes[name]; !ok && name != "resource.kubernetes.io/pcieRoot" && name != "resource.kubernetes.io/numaNode" {
						t.Errorf("group of %d has no %s", size, name)
					}
				}
			}
			if len(all.With(gpu.KindGroup).Slices) != len(all.Slices) || len(none.With(gpu.KindGroup).With(gpu.KindGroup).Slices) != len(none.With(gpu.KindGroup).Slices) {
				t.Error("a group is there twice")
			}
		})
	}
}

// TestWith_NodeWithoutMonitors_KnowsThoseThatItCouldPublish compares them with the monitor devices of the same boards that
// publish them.
func TestWith_NodeWithoutMonitors_KnowsThoseThatItCouldPublish(t *testing.T) {
	for _, board := range []string{"hgx-h100", "l40s-4", "gb200-tray"} {
		scanned, err := slicetest.Scan(board, "n", 0)
		if err != nil {
			t.Fatal(err)
		}
		monitors := func(setting string, with ...gpu.Kind) (out []resourceapi.Device) {
			settings, _, err := sharing.Parse([]byte("publish: [{monitors: " + setting + "}]"))
			if err != nil {
				t.Fatal(err)
			}
			for d, kind := range poolOf(&pool.Shapes{}, slicetest.Slices(scanned, "n", settings)).With(with...).Devices() {
				if kind.Type == gpu.KindMonitor {
					out = append(out, d)
				}
			}
			return out
		}
		if n := len(monitors("None")); n != 0 {
			t.Fatalf("%s: %d monitor devices are published", board, n)
		}
		want := monitors("All")
		for setting, got := range map[string][]resourceapi.Device{"None": monitors("None", gpu.KindMonitor), "All": monitors("All", gpu.KindMonitor)} {
			if diff := cmp.Diff(want, got); len(want) == 0 || diff != "" {
				t.Errorf("%s, %s: (-published +possible)\n%s", board, setting, diff)
			}
		}
	}
}
