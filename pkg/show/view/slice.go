// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package view joins the API objects of a cluster into a picture of its GPUs. It says where they are, how they are cut
// and shared, and which claims and pods hold them.
//
// Traps. The objects come from separate requests, so a claim can hold a device that the slices do not show, and a pool
// can be incomplete. Other programs write slices with the driver's name, so names, counters and quantities can be
// malformed: such devices are counted in Node.Unreadable and are never an error.
package view

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// Slice is a ResourceSlice that shares the common part with the slices of equal nodes, and keeps the rest of the
// part that people see.
type Slice struct {
	pool.Slice
	// UUIDs are those of GPUs and of existing partitions, by device name.
	UUIDs map[string]string
	// Unhealthy holds the taint of each unhealthy device, by device name.
	Taints map[string]resourceapi.DeviceTaint
}

// Trim converts a ResourceSlice. The caller must not use it afterwards.
func Trim(shapes *pool.Shapes, in *resourceapi.ResourceSlice) *Slice {
	out := &Slice{UUIDs: map[string]string{}, Taints: map[string]resourceapi.DeviceTaint{}}
	for _, d := range in.Spec.Devices {
		if uuid := pool.Text(d, "uuid"); uuid != "" && pool.Text(d, "type") != string(gpu.KindMonitor) {
			out.UUIDs[d.Name] = uuid
		}
		for _, t := range d.Taints {
			if t.Key == resourceslices.UnhealthyTaint {
				out.Taints[d.Name] = t
			}
		}
	}
	out.Slice = shapes.Trim(in)
	return out
}

// Trimmer trims packed slices, each Template once. It is not safe for concurrent use.
type Trimmer struct {
	Shapes *pool.Shapes
	known  map[*pool.Template]*Slice
}

// Slice returns the trimmed slice. It shares maps with other slices, so the caller must not change them.
func (t *Trimmer) Slice(p *pool.Packed) *Slice {
	known, ok := t.known[p.Template]
	if !ok {
		known = Trim(t.Shapes, p.Copy())
		if t.known == nil {
			t.known = map[*pool.Template]*Slice{}
		}
		t.known[p.Template] = known
	}
	out := *known
	out.Slice.ObjectMeta = metav1.ObjectMeta{Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion}
	out.Node, out.Pool, out.Clique = p.Node, p.Pool, p.Clique()
	out.UUIDs = make(map[string]string, len(known.UUIDs))
	for at, a := range p.Identities() {
		d := &p.Spec.Devices[at.Device]
		if at.Name == "uuid" && a.StringValue != nil && *a.StringValue != "" && pool.Text(*d, "type") != string(gpu.KindMonitor) {
			out.UUIDs[d.Name] = *a.StringValue
		}
	}
	return &out
}

// Pool is a pool of devices, as its newest generation publishes it.
type Pool struct {
	Name       string `json:"pool"`
	Node       string `json:"node"`
	Generation int64  `json:"generation"`
	// Slices of the newest generation exist, of the Expected number.
	Slices   int `json:"slices"`
	Expected int `json:"expected"`
	Devices  int `json:"devices"`
	// Outdated is the number of slices of older generations.
	Outdated int `json:"outdated,omitempty"`
}

// Pools merges slices by pool, sorted by name.
func Pools(all []*Slice) []Pool {
	found := map[string]*Pool{}
	total := map[string]int{}
	for _, s := range all {
		total[s.Pool.Name]++
		p := found[s.Pool.Name]
		if p == nil || p.Generation < s.Pool.Generation {
			p = &Pool{Name: s.Pool.Name, Node: s.Node, Generation: s.Pool.Generation, Expected: int(s.Pool.ResourceSliceCount)}
			found[s.Pool.Name] = p
		}
		if p.Generation == s.Pool.Generation {
			p.Slices++
			if s.Shape != nil {
				p.Devices += len(s.Shape.Devices)
			}
		}
	}
	var out []Pool
	for _, name := range slices.Sorted(maps.Keys(found)) {
		p := *found[name]
		p.Outdated = total[name] - p.Slices
		out = append(out, p)
	}
	return out
}
