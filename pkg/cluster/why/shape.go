// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"iter"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// shape is a set of nodes that the allocator cannot distinguish, and its answer for them.
type shape struct {
	*ask.Alike
	driver string // The slices of other drivers count for the allocator only.
	result ask.Outcome
	text   string
}

// devices iterates over the devices of the driver on the node, with their pools.
func (s *shape) devices() iter.Seq2[string, resourceapi.Device] {
	return func(yield func(string, resourceapi.Device) bool) {
		for _, slice := range s.Slices {
			for _, d := range slice.Spec.Devices {
				if slice.Spec.Driver == s.driver && !yield(slice.Spec.Pool.Name, d) {
					return
				}
			}
		}
	}
}

// taken returns the GPUs of the driver of which claims have all or a part.
func (s *shape) taken() map[string]bool {
	type device struct {
		pool pool.ID
		name string
	}
	held := map[device]bool{}
	for _, c := range s.Holders() {
		for id, r := range pool.Held(c.Status.Allocation) {
			held[device{id, r.Device}] = true
		}
	}
	out := map[string]bool{}
	for in, d := range s.devices() {
		if held[device{pool.ID{Driver: s.driver, Pool: in}, d.Name}] {
			for _, g := range pool.GPUsOf(d) {
				out[g] = true
			}
		}
	}
	return out
}

// closed returns the GPUs of the driver with a taint against new claims.
func (s *shape) closed() map[string]bool {
	out := map[string]bool{}
	for _, d := range s.devices() {
		for _, g := range pool.GPUsOf(d) {
			out[g] = out[g] || len(closingTaints(d)) > 0
		}
	}
	return out
}

// taints returns the taints of some GPUs against new claims.
func (s *shape) taints(of func(gpu string) bool) (out []resourceapi.DeviceTaint) {
	for _, d := range s.devices() {
		if pool.KindOf(d).Type == gpu.KindGPU && of(d.Name) {
			out = append(out, closingTaints(d)...)
		}
	}
	return out
}

// closingTaints returns the taints of a device against new claims, but for that of devices which are withdrawn while no
// object asks for them.
func closingTaints(d resourceapi.Device) []resourceapi.DeviceTaint {
	return slices.DeleteFunc(ask.Untolerated(d, nil), func(t resourceapi.DeviceTaint) bool {
		return t.Key == wire.UnhealthyTaint && t.Value == string(resourceslices.NoDemand)
	})
}

// nameCordoned adds the cordoned GPUs to the command in a text about one node, unless they are many.
func nameCordoned(text string, nodes []string, shapes []*shape) string {
	at := slices.IndexFunc(shapes, func(s *shape) bool { return len(nodes) == 1 && s.Name == nodes[0] })
	if at < 0 || !strings.Contains(text, uncordonCommand) {
		return text
	}
	found := sets.New[string]()
	for _, d := range shapes[at].devices() {
		if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == wire.CordonTaint }) {
			if named, err := gpu.ParseName(d.Name); err == nil && named.Kind == gpu.KindGPU {
				found.Insert(" " + nodes[0] + "/" + d.Name)
			}
		}
	}
	const maxNamed = 8
	if found.Len() > maxNamed {
		return text
	}
	return strings.Replace(text, uncordonCommand, uncordonCommand+strings.Join(sets.List(found), ""), 1)
}

func (s *shape) tainted() bool {
	return slices.ContainsFunc(s.Slices, func(slice ask.Slice) bool {
		return slices.ContainsFunc(slice.Spec.Devices, func(d resourceapi.Device) bool { return len(d.Taints) > 0 })
	})
}

// sameDevices reports whether two pools of a node have the same devices.
func sameDevices(a, b pool.Pool) bool {
	return slices.EqualFunc(a.Slices, b.Slices, func(x, y *pool.Slice) bool { return x.Shape == y.Shape })
}

// published returns the pool of the driver on the node.
func (s *shape) published() pool.Pool {
	return pool.Of(slices.DeleteFunc(slices.Clone(s.Packed), func(one *pool.Slice) bool {
		return one.Shape.Spec.Driver != s.driver || one.Node != s.Name
	}))
}
