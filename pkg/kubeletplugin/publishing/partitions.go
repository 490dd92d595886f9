// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"errors"
	"maps"
	"slices"
	"time"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/topology"
)

// own notes the partitions that records own now, beside those that they owned before the scan from which the slices are
// built. n.mu is held.
func (n *Node) own(plans []plan.Plan, switched map[string]bool) {
	n.ownedNow, n.switchedNow = map[gpu.Device]bool{}, switched
	for _, p := range plans {
		for _, d := range p.Devices {
			if d.Kind == gpu.KindMIG && !d.Admin && !d.Partition.Foreign {
				n.ownedNow[gpu.Device{Kind: gpu.KindMIG, PCIAddress: d.PCIAddress, Profile: d.Partition.Profile, Start: d.Partition.Start}] = true
			}
		}
	}
	n.owned, n.switched = union(n.owned, n.ownedNow), union(n.switched, n.switchedNow)
}

func union[K comparable](a, b map[K]bool) map[K]bool {
	out := map[K]bool{}
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

// foreign are the partitions that no record owns. n.mu is held.
func (n *Node) foreign(s gpu.Snapshot) map[string][]gpu.Partition {
	out := map[string][]gpu.Partition{}
	if n.o.AdoptForeign {
		return out
	}
	for _, g := range s.GPUs {
		for _, p := range g.MIG.Partitions {
			if !n.owned[gpu.Device{Kind: gpu.KindMIG, PCIAddress: g.PCIAddress, Profile: p.Profile, Start: p.Placement.Start}] {
				out[g.PCIAddress] = append(out[g.PCIAddress], p)
			}
		}
	}
	return out
}

// modes are the GPUs whose MIG mode is this driver's to switch off. n.mu is held.
func (n *Node) modes(s gpu.Snapshot) map[string]bool {
	out := maps.Clone(n.switched)
	for _, g := range s.GPUs {
		if n.o.AdoptForeign && g.MIG.Enabled {
			out[g.PCIAddress] = true
		}
	}
	return out
}

// settled is how long a partition is in a record before a scan must have shown it.
const settled = 5 * time.Second

// Prepared notes new partitions, so that one which vanishes at once is missed soon, too.
func (n *Node) Prepared(devices []devicestate.PreparedDevice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range devices {
		uuid := d.Partition.UUID
		if uuid == "" {
			continue
		}
		n.since[uuid] = n.now()
		if !n.due {
			n.due = true
			time.AfterFunc(settled+settled/2, func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.due = false
				n.changed.Fire()
			})
		}
	}
}

// findMissing sends the claims whose partitions the last scan does not show, in place of earlier ones. Between the scan
// and now one may have been made or removed, so the partitions may exist. n.mu is held.
func (n *Node) findMissing(s gpu.Snapshot, plans []plan.Plan) {
	var missing []reporting.Missing
	since := map[string]time.Time{}
	for _, p := range plans {
		m := reporting.Missing{Plan: p}
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
			g, ok := s.ByAddress(d.PCIAddress)
			if ok && g.MIG.Fault == "" && !contains(g.MIG, d.Partition) && n.now().Sub(first) >= settled {
				m.Devices = append(m.Devices, d.Name)
			}
		}
		if len(m.Devices) > 0 {
			missing = append(missing, m)
		}
	}
	n.since = since
	select {
	case <-n.missing:
	default:
	}
	n.missing <- missing // It has room: only here, under the lock, something is sent.
}

func contains(m gpu.MIG, p plan.Partition) bool {
	found, ok := m.At(p.Profile, p.Start)
	return ok && slices.ContainsFunc(found.Devices, func(d gpu.PartitionDevice) bool { return d.UUID == p.UUID })
}

// findSplitGroups notifies claims, and their pods, that NVLink does not connect the GPUs of their group any more: once, until
// it does again. Their processes run on, so nobody else would. n.mu is held.
func (n *Node) findSplitGroups(s gpu.Snapshot, plans []plan.Plan) {
	islands := topology.Find(s.GPUs)
	split := map[string]bool{}
	for _, p := range plans {
		for name, members := range groupsOf(p) {
			named, err := gpu.ParseName(name)
			if err != nil || len(s.GPUs) == 0 {
				continue // A driver that is gone for a moment says nothing of links.
			}
			group, ok := topology.At(islands, named.Size, named.PCIAddress)
			if ok && slices.Equal(sorted(group.Members), sorted(members)) {
				continue
			}
			key := p.Claim.UID + " " + name
			split[key] = true
			if n.split[key] {
				continue
			}
			n.report(&claimerror.Error{
				Reason: claimerror.NVLinkDown, Attempt: "watch", Claim: p.Claim.String(), Device: name,
				Cause:  errors.New("NVLink does not connect its GPUs any more; what runs on them may fail, or go over PCIe"),
				Remedy: "look at nvidia-smi nvlink --status on the node, and delete the pod to have it on other GPUs",
			})
		}
	}
	n.split = split
}

// groupsOf are the groups that a plan has for use, with the PCI addresses of their GPUs.
func groupsOf(p plan.Plan) map[string][]string {
	out := map[string][]string{}
	for _, d := range p.Devices {
		if d.Kind == gpu.KindGroup && !d.Admin {
			out[d.Name] = append(out[d.Name], d.PCIAddress)
		}
	}
	return out
}

func sorted(in []string) []string { return slices.Sorted(slices.Values(in)) }
