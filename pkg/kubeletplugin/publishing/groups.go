// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"errors"
	"slices"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/topology"
)

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
