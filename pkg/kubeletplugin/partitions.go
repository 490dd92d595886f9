// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"maps"
	"time"

	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
)

// MIG is what publishing needs to know of how partitions are made here.
type MIG struct {
	// AllowReset has MIG modes switched where that resets the GPU.
	AllowReset bool
	// AdoptForeign has partitions and modes that no claim's record owns taken for leftovers.
	AdoptForeign bool
	// Switched says of which GPUs this driver switched the MIG mode on. Nil: of none.
	Switched func() (map[string]bool, error)
	// RecordedInterconnect is how a GPU in MIG mode was connected before, as recorded by an earlier run of the plugin.
	// Nil: nothing is known.
	RecordedInterconnect func(gpu.GPU) gpu.Interconnect
}

func (m MIG) switchedModes() (map[string]bool, error) {
	if m.Switched == nil {
		return nil, nil
	}
	return m.Switched()
}

// partitionOf names a MIG device's partition.
func partitionOf(d plan.Device) gpu.Device {
	return gpu.Device{Kind: gpu.KindMIG, PCIAddress: d.PCIAddress, Profile: d.Partition.Profile, Start: d.Partition.Start}
}

// own notes what records own now, beside what they owned before the look that the slices are built from. n.mu is held.
func (n *node) own(plans []plan.Plan, switched map[string]bool) {
	n.ownedNow, n.switchedNow = map[gpu.Device]bool{}, switched
	for _, p := range plans {
		for _, d := range p.Devices {
			if d.Kind == gpu.KindMIG && !d.Admin && !d.Partition.Foreign {
				n.ownedNow[partitionOf(d)] = true
			}
		}
	}
	n.owned, n.switched = maps.Clone(n.owned), maps.Clone(n.switched)
	if n.owned == nil {
		n.owned = map[gpu.Device]bool{}
	}
	if n.switched == nil {
		n.switched = map[string]bool{}
	}
	maps.Copy(n.owned, n.ownedNow)
	maps.Copy(n.switched, n.switchedNow)
}

// foreign are the partitions that no record owns. n.mu is held.
func (n *node) foreign() map[string][]gpu.Partition {
	out := map[string][]gpu.Partition{}
	if n.mig.AdoptForeign {
		return out
	}
	for _, g := range n.snapshot.GPUs {
		for _, p := range g.MIG.Partitions {
			at := gpu.Device{Kind: gpu.KindMIG, PCIAddress: g.PCIAddress, Profile: p.Profile, Start: p.Placement.Start}
			if !n.owned[at] {
				out[g.PCIAddress] = append(out[g.PCIAddress], p)
			}
		}
	}
	return out
}

// modes are the GPUs whose MIG mode is this driver's to switch off. n.mu is held.
func (n *node) modes() map[string]bool {
	out := maps.Clone(n.switched)
	for _, g := range n.snapshot.GPUs {
		if n.mig.AdoptForeign && g.MIG.Enabled {
			out[g.PCIAddress] = true
		}
	}
	return out
}

// suspicion is a claim with partitions that looks do not show.
type suspicion struct {
	plan plan.Plan
	// devices are the partitions' names.
	devices []string
}

// settled is how long a partition is in a record before a look must have shown it.
const settled = 5 * time.Second

// holds notes partitions that were just prepared, so that one which vanishes at once is missed soon, too.
func (n *node) holds(devices []devicestate.PreparedDevice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range devices {
		uuid := d.Partition.UUID
		if uuid == "" {
			continue
		}
		if n.since == nil {
			n.since = map[string]time.Time{}
		}
		n.since[uuid] = n.now()
		if !n.due {
			n.due = true
			time.AfterFunc(settled+settled/2, func() {
				n.mu.Lock()
				n.due = false
				n.mu.Unlock()
				n.changed()
			})
		}
	}
}

// unseen are the claims whose partitions the last look does not show. Between the look and now one may have been made or
// taken away, so this is a suspicion. n.mu is held.
func (n *node) unseen(plans []plan.Plan) []suspicion {
	var out []suspicion
	since := map[string]time.Time{}
	for _, p := range plans {
		m := suspicion{plan: p}
		for _, d := range p.Devices {
			uuid := d.Partition.UUID
			if uuid == "" {
				continue
			}
			first, known := n.since[uuid]
			if !known {
				first = n.now()
			}
			since[uuid] = first
			g, ok := n.snapshot.ByAddress(d.PCIAddress)
			if ok && g.MIG.Fault == "" && !shows(g.MIG, d.Partition) && n.now().Sub(first) >= settled {
				m.devices = append(m.devices, d.Name)
			}
		}
		if len(m.devices) > 0 {
			out = append(out, m)
		}
	}
	n.since = since
	return out
}

func shows(m gpu.MIG, p plan.Partition) bool {
	found, ok := m.At(p.Profile, p.Start)
	for _, d := range found.Devices {
		if d.UUID == p.UUID {
			return ok
		}
	}
	return false
}
