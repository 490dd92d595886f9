// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/gpu/topology"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
)

// place is the place of a partition.
type place struct {
	address, profile string
	start            int
}

// own notes the partitions that records own now, in addition to those from before the last scan: that scan lists a
// stuck partition that was destroyed since. The caller holds n.mu.
func (n *Node) own(in inputs) {
	n.ownedNow, n.switchedNow = map[place]bool{}, in.Switched
	for _, p := range in.plans {
		for _, d := range p.Devices {
			if d.Kind == gpu.KindMIG && !d.Admin && !d.Partition.External {
				n.ownedNow[place{d.PCIAddress, d.Partition.Profile, d.Partition.Start}] = true
			}
		}
	}
	for address, partitions := range in.Stuck {
		for _, p := range partitions {
			n.ownedNow[place{address, p.Profile, p.Placement.Start}] = true
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

// scanGrace is the time in a record after which a scan must show a partition, and checkAfter when that is checked.
const scanGrace, checkAfter = 5 * time.Second, 7500 * time.Millisecond

// Prepared notes new partitions, so that an early loss is noticed soon. It rebuilds the slices if a claim shares its
// device in another way than they say.
func (n *Node) Prepared(devices []devicestate.PreparedDevice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range devices {
		if !d.Admin && unlikeSettings(n.o.Settings, n.o.Sharing, n.last[d.PCIAddress], d.Device) {
			n.Changed.Fire()
		}
		uuid := d.Partition.UUID
		if uuid == "" {
			continue
		}
		n.since[uuid] = n.now()
		if !n.due {
			n.due = true
			time.AfterFunc(checkAfter, n.check)
		}
	}
}

// check requests a build, and another one for partitions that are too new for this one: a scan without changes
// requests none.
func (n *Node) check() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Changed.Fire()
	var newest time.Time
	for _, since := range n.since {
		if since.After(newest) {
			newest = since
		}
	}
	wait := checkAfter - n.now().Sub(newest)
	if n.due = wait > 0; n.due {
		time.AfterFunc(wait, n.check)
	}
}

// findMissing sends the claims whose partitions are not in the last scan, and replaces an earlier report. A partition
// that was created or removed since the scan can still exist. While NVML does not answer, the earlier report
// stands. The caller holds n.mu.
func (n *Node) findMissing(in inputs) {
	if in.unknown {
		return
	}
	var missing []reporting.Missing
	since := map[string]time.Time{}
	for _, p := range in.plans {
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
			g, ok := in.scan.ByAddress(d.PCIAddress)
			if ok && g.MIG.Fault == "" && !contains(g.MIG, d.Partition) && n.now().Sub(first) >= scanGrace {
				m.Devices = append(m.Devices, d.Name)
			}
		}
		if len(m.Devices) > 0 {
			missing = append(missing, m)
		}
	}
	n.since = since
	n.Missing.Put(missing)
}

func contains(m gpu.MIG, p plan.Partition) bool {
	found, ok := m.At(p.Profile, p.Start)
	return ok &&
		(found.Unlisted ||
			slices.ContainsFunc(found.Devices, func(d gpu.PartitionDevice) bool { return d.UUID == p.UUID }))
}

// findSplitGroups notifies claims and their pods, once, that NVLink no longer connects the GPUs of their group. Their
// processes keep running, so no other error shows it. The caller holds n.mu.
func (n *Node) findSplitGroups(in inputs) {
	islands := topology.Find(in.scan.GPUs)
	split := map[string]bool{}
	for _, p := range in.plans {
		for name, members := range groupsOf(p) {
			named, err := gpu.ParseName(name)
			silent := slices.ContainsFunc(in.scan.Problems, func(p gpu.Problem) bool {
				return p.Silent && slices.Contains(members, p.PCIAddress)
			})
			if err != nil || len(in.scan.GPUs) == 0 || silent {
				continue // Without the driver, and while a GPU hangs, the links are unknown.
			}
			group, ok := topology.At(islands, named.Size, named.PCIAddress)
			if ok && sets.New(group.Members...).Equal(sets.New(members...)) {
				continue
			}
			key := p.Claim.UID + " " + name
			split[key] = true
			if n.split[key] {
				continue
			}
			n.o.Reports.Report(&claimerror.Error{
				Reason:  claimerror.NVLinkDown,
				Attempt: "health check",
				Claim:   p.Claim.String(),
				UID:     p.Claim.UID,
				Device:  name,
				Cause:   errors.New("NVLink no longer connects its GPUs, so processes on them may fail or use PCIe"),
				Remedy:  "run nvidia-smi nvlink --status on the node, and delete the pod to run it on other GPUs",
			})
		}
	}
	n.split = split
}

// findFaulty returns the claims with devices of faulty GPUs.
func (in inputs) findFaulty() (all []reporting.Faulty) {
	for _, p := range in.plans {
		f := reporting.Faulty{Plan: p, Devices: map[string]reporting.Fault{}}
		for _, d := range p.Devices {
			worst := worstFault(in.scan, d.PCIAddress)
			state, ok := health.Lookup(worst.State)
			if ok && !d.Admin && d.Kind != gpu.KindMonitor && (!state.GroupsOnly || d.Kind == gpu.KindGroup) {
				f.Devices[d.Name] = reporting.Fault{Cause: worst.Cause, Remedy: state.RemedyFor(d.PCIAddress)}
			}
		}
		if len(f.Devices) > 0 {
			all = append(all, f)
		}
	}
	return all
}

// worstFault returns the worst fault of a GPU, the zero one without any. A lost GPU is not among the readable ones.
func worstFault(s gpu.Snapshot, address string) (worst gpu.Fault) {
	for _, p := range s.Problems {
		if p.Lost && p.PCIAddress == address {
			return gpu.Fault{State: health.Lost, Cause: generalCause(health.Lost)}
		}
	}
	if g, _ := s.ByAddress(address); len(g.Faults) > 0 {
		return g.Faults[0]
	}
	return worst
}

// groupsOf returns a plan's groups with the PCI addresses of their GPUs, without those for monitoring.
func groupsOf(p plan.Plan) map[string][]string {
	out := map[string][]string{}
	for _, d := range p.Devices {
		if d.Kind == gpu.KindGroup && !d.Admin {
			out[d.Name] = append(out[d.Name], d.PCIAddress)
		}
	}
	return out
}
