// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire/demand"
)

// byGPU is the Demand of a node of which some GPUs serve.
type byGPU struct {
	sharingtest.NoDemand
	gpus []string
}

func (d *byGPU) of(g gpu.GPU) sharing.Placements {
	if slices.Contains(d.gpus, g.PCIAddress) {
		return sharing.AllPlacements
	}
	return sharing.LaterPlacements
}

func (d *byGPU) Placements(g gpu.GPU, _ string) sharing.Placements { return d.of(g) }

func (d *byGPU) Shares(g gpu.GPU) sharing.Placements { return d.of(g) }

// TestServingGPUs_PartsOneAfterTheOther_FillAGPUFirst has claims for parts of GPUs that come after the node has published what
// the controller chose. Each gets the first device that fits, as by the scheduler. Claims of whole GPUs take the others first.
func TestServingGPUs_PartsOneAfterTheOther_FillAGPUFirst(t *testing.T) {
	settings, _, err := sharing.Parse([]byte("publish: [{profiles: Auto, groups: Auto, monitors: Auto, shareable: Auto}]"))
	if err != nil {
		t.Fatal(err)
	}
	scanned, err := slicetest.Scan("hgx-h100", "n", 0)
	if err != nil {
		t.Fatal(err)
	}
	const perGPU = 7 // Partitions 1g.10gb, or shares of 10 GiB.
	for kind, fits := range map[gpu.Kind]func(resourceapi.Device) bool{
		gpu.KindMIG: func(d resourceapi.Device) bool {
			return ptr.Deref(d.Attributes["profile"].StringValue, "") == "1g.10gb"
		},
		gpu.KindGPU: func(d resourceapi.Device) bool { return ptr.Deref(d.AllowMultipleAllocations, false) },
	} {
		node := &byGPU{}
		taken, names, whole := map[string]int{}, map[string]bool{}, map[string]bool{}
		publish := func() []resourceapi.Device {
			t.Helper()
			var all []resourceapi.Device
			var slicesOf []*pool.Slice
			for _, s := range slicetest.Slices(scanned, "n", settings, func(o *resourceslices.Options) {
				o.Sharing = sharing.Node{Name: "n", Settings: settings, MPS: true, Demand: node}
			}) {
				all = append(all, s.Spec.Devices...)
				slicesOf = append(slicesOf, pool.Unshared(s))
			}
			gpus := servesOf(pool.Of(slicesOf)).gpus
			for i := range gpus {
				gpus[i].Part, gpus[i].Whole = taken[gpus[i].Address] > 0, whole[gpus[i].Address]
			}
			node.gpus = demand.ServingGPUs(node.gpus, gpus, 2, false, false)
			return all
		}
		publish() // The controller sees the node.
		for n := range 5 * perGPU {
			if n%perGPU == 3 && n < 3*perGPU { // A claim for a whole GPU comes between.
				for _, d := range publish() {
					address := named(t, d).PCIAddress
					if ptr.Deref(d.Attributes["type"].StringValue, "") != "gpu" || taken[address] > 0 || whole[address] {
						continue
					}
					if slices.Contains(node.gpus, address) {
						t.Errorf("%s: a claim for a whole GPU takes %s, which serves %v", kind, address, node.gpus)
					}
					whole[address] = true
					break
				}
			}
			placed := false
			for _, d := range publish() {
				address := named(t, d).PCIAddress
				if !fits(d) || taken[address] >= perGPU || whole[address] || kind == gpu.KindMIG && names[d.Name] {
					continue
				}
				taken[address]++
				names[d.Name], placed = true, true
				break
			}
			if used := len(taken); !placed || used > n/perGPU+1 {
				t.Fatalf("%s: %d claims use %d GPUs: %v, serving %v, placed %v", kind, n+1, used, taken, node.gpus, placed)
			}
		}
	}
}

func named(t *testing.T, d resourceapi.Device) gpu.Device {
	t.Helper()
	out, err := gpu.ParseName(d.Name)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
