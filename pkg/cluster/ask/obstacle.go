// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/pool"
)

// Obstacle says what keeps one request from one device.
type Obstacle struct {
	Node    string `json:"node"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	Request string `json:"request"`
	// Reasons is empty if the request could get the device.
	Reasons []string `json:"reasons,omitempty"`
}

// Obstacles lists what keeps the claims' requests from each device of a node.
func (a Asker) Obstacles(ctx context.Context, n *Node, claims []*resourceapi.ResourceClaim) (out []Obstacle) {
	left := n.left(nil)
	for _, c := range claims {
		for _, q := range a.Requests(c.Spec.Devices) {
			for _, s := range n.Slices {
				if !ptr.Deref(s.Spec.PerDeviceNodeSelection, false) &&
					!Matches(n.Node, s.Spec.NodeName, s.Spec.AllNodes, s.Spec.NodeSelector) {
					continue
				}
				for i, d := range s.Spec.Devices {
					out = append(out, Obstacle{n.Name, s.Spec.Pool.Name, d.Name, q.Name,
						a.reasonsAgainst(ctx, n, q, s, i, left[s.id()])})
				}
			}
		}
	}
	return out
}

// Taints returns the taints, each once, for which the claims' requests do not get devices of a node that their
// selectors match.
func (a Asker) Taints(
	ctx context.Context, n *Node, claims []*resourceapi.ResourceClaim,
) (out []resourceapi.DeviceTaint) {
	for _, c := range claims {
		for _, q := range a.Requests(c.Spec.Devices) {
			for _, s := range n.Slices {
				for i, d := range s.Spec.Devices {
					found := Untolerated(d, q.Tolerations)
					if len(found) == 0 {
						continue
					}
					if failed, err := a.Failing(ctx, q.Expressions(), s.Candidate(i)); failed != "" || err != nil {
						continue
					}
					for _, t := range found {
						t.TimeAdded = nil
						if !slices.Contains(out, t) {
							out = append(out, t)
						}
					}
				}
			}
		}
	}
	return out
}

// reasonsAgainst returns the reasons against a device: its selectors, or all other reasons.
func (a Asker) reasonsAgainst(
	ctx context.Context, n *Node, q Request, s Slice, index int, left pool.Counters,
) (out []string) {
	switch failed, err := a.Failing(ctx, q.Expressions(), s.Candidate(index)); {
	case err != nil:
		return []string{fmt.Sprintf("selector %s fails: %v", Brief(failed), err)}
	case failed != "":
		return []string{"selector " + Brief(failed)}
	}
	d, id := s.Spec.Devices[index], s.id()
	for _, t := range Untolerated(d, q.Tolerations) {
		out = append(out, "taint "+TaintText(t))
	}
	if q.Admin() {
		return out
	}
	shared, used := ptr.Deref(d.AllowMultipleAllocations, false), n.inUse(id, d.Name, nil)
	if used && (!shared || n.whole(id, d.Name, nil)) {
		return append(out, "held by "+names(n.held[id][d.Name]))
	}
	if lacking := left.Lacking(d); !used && len(lacking) > 0 {
		out = append(out, fmt.Sprintf("counter %s is used by %s", slices.Min(lacking),
			names(n.competitors(id, lacking))))
	}
	if text := short(q, d, n.held[id][d.Name]); shared && text != "" {
		out = append(out, text)
	}
	return out
}

// competitors returns the held devices that consume one of the counters.
func (n *Node) competitors(id pool.ID, lacking []string) (out []hold) {
	for _, s := range n.Slices {
		if s.id() != id {
			continue
		}
		for _, d := range s.Spec.Devices {
			for _, use := range d.ConsumesCounters {
				for name := range use.Counters {
					if slices.Contains(lacking, use.CounterSet+"/"+name) {
						out = append(out, n.held[id][d.Name]...)
					}
				}
			}
		}
	}
	return out
}

// short says which capacity of a shared device does not suffice, or "". The allocator can round a request up further.
func short(q Request, d resourceapi.Device, held []hold) string {
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		c := d.Capacity[name]
		need := Needed(q, name, c)
		left := c.Value.DeepCopy()
		for _, h := range held {
			if used, ok := h.Result.ConsumedCapacity[name]; ok {
				left.Sub(used)
			}
		}
		if left.Cmp(need) < 0 && len(held) == 0 {
			return fmt.Sprintf("capacity %s: %s of %s asked", name, need.String(), c.Value.String())
		} else if left.Cmp(need) < 0 {
			return fmt.Sprintf("capacity %s: %s asked, %s left by %s", name, need.String(), left.String(), names(held))
		}
	}
	if q.Capacity != nil {
		for _, name := range slices.Sorted(maps.Keys(q.Capacity.Requests)) {
			if _, ok := d.Capacity[name]; !ok {
				return fmt.Sprintf("it has no capacity %s", name)
			}
		}
	}
	return ""
}

// Needed returns how much of a capacity of a shared device a request needs. The allocator can round it up further.
func Needed(q Request, name resourceapi.QualifiedName, c resourceapi.DeviceCapacity) resource.Quantity {
	if q.Capacity != nil {
		if asked, ok := q.Capacity.Requests[name]; ok {
			return asked.DeepCopy()
		}
	}
	if c.RequestPolicy != nil && c.RequestPolicy.Default != nil {
		return c.RequestPolicy.Default.DeepCopy()
	}
	return c.Value.DeepCopy()
}

// Untolerated returns the taints that keep a request from a device.
func Untolerated(d resourceapi.Device, tolerations []resourceapi.DeviceToleration) (out []resourceapi.DeviceTaint) {
	for _, t := range d.Taints {
		if t.Effect != resourceapi.DeviceTaintEffectNoSchedule && t.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		if !slices.ContainsFunc(tolerations, func(one resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(one, t)
		}) {
			out = append(out, t)
		}
	}
	return out
}

// names lists the claims of holds.
func names(held []hold) string {
	found := sets.New[string]()
	for _, h := range held {
		found.Insert("claim " + NameOf(h.Claim).String())
	}
	return List(sets.List(found))
}

// List joins up to three names.
func List(all []string) string {
	const maxListed = 3
	if len(all) > maxListed {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxListed], ", "), len(all)-maxListed)
	}
	return strings.Join(all, ", ")
}

// Brief cuts a long expression.
func Brief(expression string) string {
	const maxRunes = 120
	expression = strings.Join(strings.Fields(expression), " ")
	if runes := []rune(expression); len(runes) > maxRunes {
		expression = string(runes[:maxRunes]) + "…"
	}
	return expression
}

// TaintText writes a taint as kubectl does.
func TaintText(t resourceapi.DeviceTaint) string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return text + ":" + string(t.Effect)
}
