// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// MIGLayout describes the partitions of equal GPUs. It has the counters of a GPU without claims, and a partition of
// each profile that the node's settings publish. Nodes publish the name of each GPU's layout, so that one node can
// publish the partitions for all others.
type MIGLayout struct {
	Counters map[string]resourceapi.Counter
	// Partitions have one device of each profile, in any place and order.
	Partitions []resourceapi.Device
}

// Name is a hash of the layout: another content has another name, so a reader can verify the partitions that it finds.
// It depends neither on the GPU nor on the places of the partitions. Controllers compute the names of earlier and later
// plugins, so a change of this function needs another attribute.
func (l MIGLayout) Name() string {
	var lines []string
	for _, d := range l.Partitions {
		lines = append(lines, partitionText(d))
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(counterText(l.Counters) + "\n" + strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:16])
}

// partitionText holds the values of a partition that do not come from its GPU, but for its place.
func partitionText(d resourceapi.Device) string {
	var out strings.Builder
	for _, name := range append([]resourceapi.QualifiedName{"productName"}, OwnPartitionAttributes...) {
		a := d.Attributes[name]
		fmt.Fprintf(&out, "%q %v ", ptr.Deref(a.StringValue, ""), ptr.Deref(a.BoolValue, false))
	}
	fmt.Fprint(&out, ptr.Deref(d.AllowMultipleAllocations, false))
	for _, name := range sortedKeys(d.Capacity) {
		c := d.Capacity[name]
		fmt.Fprintf(&out, " %s=%d", name, c.Value.Value())
		if p := c.RequestPolicy; p != nil {
			r := ptr.Deref(p.ValidRange, resourceapi.CapacityRequestPolicyRange{})
			for _, q := range []*resource.Quantity{p.Default, r.Min, r.Max, r.Step} {
				if q == nil {
					q = &resource.Quantity{}
				}
				fmt.Fprintf(&out, ",%d", q.Value())
			}
			for _, q := range p.ValidValues {
				fmt.Fprintf(&out, ",%d", q.Value())
			}
		}
	}
	for _, use := range d.ConsumesCounters {
		if text, slices := placedText(use.Counters); slices {
			out.WriteString(text)
		}
	}
	return out.String()
}

// sliceCounters begins the names of the counters of memory slices.
const sliceCounters = "memory-slice-"

func counterText(counters map[string]resourceapi.Counter) string {
	var out strings.Builder
	for _, name := range sortedKeys(counters) {
		c := counters[name]
		fmt.Fprintf(&out, " %s=%d", name, c.Value.Value())
	}
	return out.String()
}

// placedText is the text of a partition's counters as if it began with the first memory slice. It reports whether there
// are memory slices.
func placedText(counters map[string]resourceapi.Counter) (text string, found bool) {
	first, moved := math.MaxInt, map[string]resourceapi.Counter{}
	index := func(name string) (int, bool) {
		number, ok := strings.CutPrefix(name, sliceCounters)
		i, err := strconv.Atoi(number)
		return i, ok && err == nil && i >= 0
	}
	for name := range counters {
		if i, ok := index(name); ok {
			first, found = min(first, i), true
		}
	}
	for name, c := range counters {
		if i, ok := index(name); ok {
			name = sliceCounter(i - first)
		}
		moved[name] = c
	}
	return counterText(moved), found
}

// OwnPartitionAttributes are the attributes of partitions that are not those of their GPU.
var OwnPartitionAttributes = []resourceapi.QualifiedName{"type", "profile", "isolation", "renameByDefault"}

// layoutName returns the name of the MIGLayout of a GPU, or "" if the node never publishes partitions of it to new
// claims. It does not depend on claims, on what the cluster asks for, and on passing states of the GPU.
func (b *builder) layoutName(g gpuState) string {
	if !g.partitionable {
		return ""
	}
	geometry := b.geometry(g.gpu.MIG)
	var entries []deviceEntry
	for _, choice := range geometry.order {
		name := choice.Profile.Name
		if slices.ContainsFunc(entries, func(e deviceEntry) bool { return e.profile.Name == name }) ||
			b.o.Sharing != nil && b.o.Sharing.Placements(b.administered(g.gpu), name) == sharing.NoPlacement {
			continue
		}
		entries = append(entries, deviceEntry{profile: choice.Profile, place: choice.Placement, device: gpu.Device{
			Kind: gpu.KindMIG, PCIAddress: g.gpu.PCIAddress, Profile: name, Start: choice.Placement.Start,
		}})
	}
	set, consumed := geometry.counters(g.gpu, entries, 0)
	out := MIGLayout{Counters: set.Counters}
	for n, e := range entries {
		s := b.source(g.gpu, e.device)
		s.profile = &e.profile
		if b.o.SharedDevices && b.o.Sharing != nil { // In the form for an object that asks for shares.
			if o, ok := b.o.Sharing.Offer(g.gpu, e.device.Profile, ""); ok {
				s.offer = &o
			}
		}
		d := b.device(s)
		d.ConsumesCounters = consumed[n]
		out.Partitions = append(out.Partitions, d)
	}
	return out.Name()
}
