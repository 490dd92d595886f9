// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// offered is a Demand whose partitions are in one state.
type offered struct {
	sharingtest.NoDemand
	placements sharing.Placements
}

func (o offered) Placements(gpu.GPU, string) sharing.Placements { return o.placements }

// TestWithdrawal_SchedulerLags_SurvivesTheTaintsTime has a GPU whose partitions end: they have a taint for 30 seconds, and then they are
// not published any more. In each second a scheduler that sees older slices allocates a partition, and then the GPU. It knows its own
// allocations at once. A lag of up to 30 seconds allocates nothing twice. A longer one does: the node then refuses the second claim.
// A device that claims block has no such taint before a withdrawal, so the shortest lag would suffice there.
func TestWithdrawal_SchedulerLags_SurvivesTheTaintsTime(t *testing.T) {
	const taintFor = 30
	at := map[sharing.Placements][]*resourceapi.ResourceSlice{}
	board := boards(1, layouttest.H100())
	for _, state := range []sharing.Placements{sharing.AllPlacements, sharing.EndingAllPlacements, sharing.LaterPlacements} {
		settings, _, err := sharing.Parse([]byte("publish: [{profiles: Auto, shareable: None}]"))
		if err != nil {
			t.Fatal(err)
		}
		at[state] = newScheduler(t, board, withSharing(sharing.Node{Name: "n1", Settings: settings,
			Demand: offered{placements: state}})).slices
	}
	// published returns the slices of a second. The partitions end in second 0, after the taint's time if they have one.
	published := func(second int, taint bool) []*resourceapi.ResourceSlice {
		switch {
		case second < 0:
			return at[sharing.AllPlacements]
		case taint && second < taintFor:
			return at[sharing.EndingAllPlacements]
		}
		return at[sharing.LaterPlacements]
	}
	s := newScheduler(t, board, resourceslices.Options{})
	for _, taint := range []bool{true, false} {
		for _, lag := range []int{0, 1, taintFor - 1, taintFor, taintFor + 1, 2 * taintFor} {
			twice := false
			for first := range 3 * taintFor {
				s.allocated, s.slices = sets.New[structured.DeviceID](), published(first-lag, taint)
				partition := s.allocate(s.claim("mig.nvidia.com", 1, profile("1g.10gb")))
				if len(partition) == 0 || first < taintFor && taint {
					continue // The controller sees the claim before the withdrawal, and the partitions stay.
				}
				s.slices = published(first+lag+1, taint)
				twice = twice || len(s.allocate(s.claim("gpu.nvidia.com", 1))) > 0
			}
			if want := taint && lag > taintFor || !taint && lag > 0; twice != want {
				t.Errorf("lag of %d s, taint %v: allocated twice %v, want %v", lag, taint, twice, want)
			}
		}
	}
}
