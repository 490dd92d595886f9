// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/gpu"
)

// profileOf returns the MIG profile in the name of a class, and false for other names.
func (a *asker) profileOf(class string) (string, bool) {
	profile, isMIG := strings.CutPrefix(class, "mig-")
	profile, ours := strings.CutSuffix(profile, "."+strings.TrimPrefix(a.Driver, "gpu."))
	return profile, isMIG && ours
}

// lacksProfiles reports whether a claim names a class that does not exist, because no GPU has its MIG profile.
func (a *asker) lacksProfiles(claim *resourceapi.ResourceClaim) bool {
	for _, q := range a.Requests(claim.Spec.Devices) {
		if profile, partition := a.profileOf(q.DeviceClassName); partition && q.Class == nil &&
			a.lacksProfile(profile) != "" {
			return true
		}
	}
	return false
}

// lacksProfile says that no GPU of the cluster has a MIG profile, or any if the profile is empty. It returns nothing if
// one has it, or if no GPU is known.
func (a *asker) lacksProfile(profile string) string {
	byNode := a.byNode()
	if len(byNode) == 0 {
		return ""
	}
	var pools []pool.Pool
	capable := false
	for _, all := range byNode {
		p := a.samples.Add(pool.Of(all))
		pools = append(pools, p)
		for d := range p.Devices() {
			capable = capable || ptr.Deref(d.Attributes["migCapable"].BoolValue, false)
		}
	}
	var profiles []string
	for kind := range pool.Publishers(pools) {
		if kind.Type == gpu.KindMIG && !slices.Contains(profiles, kind.Profile) {
			profiles = append(profiles, kind.Profile)
		}
	}
	slices.Sort(profiles)
	switch {
	case slices.ContainsFunc(profiles, func(known string) bool {
		return known == profile || deviceclasses.ProfileLabel(known) == profile
	}):
		return ""
	case len(profiles) == 0 && !capable:
		return "no GPU of the cluster has MIG"
	case len(profiles) == 0:
		return "no node publishes partitions, though GPUs have MIG (chart value publish)"
	case profile == "":
		return ""
	}
	near := nearest(profile, profiles)
	return fmt.Sprintf("no GPU of the cluster has the MIG profile %s (its profiles are %s; the nearest is %s, with "+
		"the DeviceClass mig-%s.%s)",
		profile, strings.Join(profiles, ", "), near, deviceclasses.ProfileLabel(near), strings.TrimPrefix(a.Driver,
			"gpu."))
}

// nearest returns the smallest of the profiles that has the compute slices and the memory of another, or else the
// largest. Profiles with extensions such as +me are for special needs, so they come last.
func nearest(profile string, all []string) string {
	type size struct{ compute, memory, extended int }
	of := func(profile string) (s size) {
		_, _ = fmt.Sscanf(profile, "%dg.%dgb", &s.compute, &s.memory) // A profile of another form has no size.
		if strings.ContainsAny(profile, "+-") {
			s.extended = 1
		}
		return s
	}
	asked := of(profile)
	lacks := func(s size) int {
		if s.compute < asked.compute || s.memory < asked.memory {
			return 1
		}
		return 0
	}
	return slices.MinFunc(all, func(x, y string) int {
		a, b := of(x), of(y)
		order := cmp.Or(cmp.Compare(a.memory, b.memory), cmp.Compare(a.compute, b.compute))
		if lacks(a) == 1 && lacks(b) == 1 {
			order = -order
		}
		return cmp.Or(lacks(a)-lacks(b), order, a.extended-b.extended)
	})
}

// byNode returns the driver's slices of each node.
func (a *asker) byNode() map[string][]*pool.Slice {
	if a.slices == nil {
		a.slices = map[string][]*pool.Slice{}
		for _, slice := range a.Slices {
			if slice.Shape != nil && slice.Shape.Spec.Driver == a.Driver {
				a.slices[slice.Node] = append(a.slices[slice.Node], slice)
			}
		}
		a.samples.LearnAll(a.slices)
	}
	return a.slices
}

// absent says which drivers of the requests publish nothing in the cluster.
func (a *asker) absent(claims []*resourceapi.ResourceClaim) (out []Reason) {
	published := sets.New[string]()
	for _, s := range a.Slices {
		if s.Shape != nil && len(s.Shape.Spec.Devices) > 0 {
			published.Insert(s.Shape.Spec.Driver)
		}
	}
	for _, claim := range claims {
		for _, q := range a.Requests(claim.Spec.Devices) {
			driver, profiles, partition := "", []string(nil), false
			for _, e := range q.Expressions() {
				r := a.Read(e)
				driver = cmp.Or(driver, r.Driver)
				profiles = append(profiles, r.Required[selector.Name{Domain: a.Driver, ID: "profile"}]...)
				partition = partition || slices.Contains(r.Required[selector.Name{Domain: a.Driver, ID: "type"}],
					string(gpu.KindMIG))
			}
			lacks := ""
			switch {
			case len(profiles) == 1:
				lacks = a.lacksProfile(profiles[0])
			case len(profiles) == 0 && partition:
				lacks = a.lacksProfile("")
			}
			switch {
			case driver == a.Driver && lacks != "":
				out = append(out, Reason{Text: fmt.Sprintf("request %s: %s", q.Name, lacks)})
			case driver == "" || published.Has(driver):
			case driver == a.Driver:
				out = append(out,
					Reason{Text: fmt.Sprintf("no node publishes devices of %s, so the requests could not be compared "+
						"with any", driver)})
			default:
				out = append(out,
					Reason{Text: fmt.Sprintf("request %s: the driver %s publishes no devices in this cluster", q.Name,
						driver)})
			}
		}
	}
	return slices.CompactFunc(out, func(a, b Reason) bool { return a.Text == b.Text })
}

// gone returns the nodes that publish nothing, though claims have devices of them.
func (a *asker) gone() map[string]bool {
	out := map[string]bool{}
	byNode := a.byNode()
	for _, claim := range a.Claims {
		if claim == nil || claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			// The names of pools begin with their node.
			if node, _, _ := strings.Cut(r.Pool, "/"); r.Driver == a.Driver && len(byNode[node]) == 0 {
				out[node] = true
			}
		}
	}
	return out
}

// invalid says which requests the scheduler refuses for all nodes.
func (a *asker) invalid(claims []*resourceapi.ResourceClaim) (out []Reason) {
	for _, c := range claims {
		for _, q := range a.Requests(c.Spec.Devices) {
			profile, partition := a.profileOf(q.DeviceClassName)
			lacks := ""
			if q.Class == nil && partition {
				lacks = a.lacksProfile(profile)
			}
			if lacks != "" {
				out = append(out,
					Reason{Text: fmt.Sprintf("request %s: %s, so there is no DeviceClass %s", q.Name, lacks,
						q.DeviceClassName)})
			} else if q.Class == nil {
				out = append(out,
					Reason{Text: fmt.Sprintf("request %s: DeviceClass %q does not exist", q.Name, q.DeviceClassName)})
			}
			for _, s := range q.Selectors {
				if s.CEL == nil {
					out = append(out, Reason{Text: fmt.Sprintf("request %s: a selector is of an unknown kind", q.Name)})
				}
			}
		}
		for _, q := range c.Spec.Devices.Requests {
			if q.Exactly == nil && len(q.FirstAvailable) == 0 {
				out = append(out, Reason{Text: fmt.Sprintf("request %s is of an unknown kind", q.Name)})
			}
		}
	}
	return out
}
