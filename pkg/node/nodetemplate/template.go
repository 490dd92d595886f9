// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// Template is a prediction.
type Template struct {
	Slices []resourceapi.ResourceSlice
	// Assumptions are sentences for people. The prediction is wrong where one does not hold.
	Assumptions []string
}

// FromNode predicts a node with the boards, driver and settings of the node that publishes these slices. They are of one
// driver and one node, and their pools are complete. name is the new node's name, a placeholder too.
func FromNode(published []resourceapi.ResourceSlice, name string) (Template, error) {
	current, err := newest(published)
	if err != nil {
		return Template{}, err
	}
	t := template{node: name, notes: map[string][]string{}, wholes: map[string]bool{}, cut: map[string]bool{}}
	for _, s := range current {
		s = *s.DeepCopy()
		devices := s.Spec.Devices
		s.Spec.Devices = nil
		for _, d := range devices {
			if t.keep(&d) {
				s.Spec.Devices = append(s.Spec.Devices, d)
			}
		}
		if len(s.Spec.Devices) > 0 || len(s.Spec.SharedCounters) > 0 {
			t.add(s.Spec)
		}
	}
	for address := range t.cut {
		if !t.wholes[address] {
			t.note("these GPUs are partitions only, and a new node has them whole if no administrator cuts them: %s", address)
		}
	}
	t.noteOnDemand()
	return t.done(), nil
}

// newest returns the slices of each pool's newest generation: whole GPUs first, then counters, partitions and monitors.
func newest(published []resourceapi.ResourceSlice) ([]resourceapi.ResourceSlice, error) {
	generation := map[string]int64{}
	for _, s := range published {
		p := s.Spec.Pool
		generation[p.Name] = max(generation[p.Name], p.Generation)
		if first := published[0].Spec; s.Spec.Driver != first.Driver || ptr.Deref(s.Spec.NodeName, "") != ptr.Deref(first.NodeName, "") {
			return nil, errors.New("the ResourceSlices are of several drivers or nodes")
		}
	}
	var out []resourceapi.ResourceSlice
	found := map[string]int64{}
	for _, s := range published {
		if p := s.Spec.Pool; p.Generation == generation[p.Name] {
			out = append(out, s)
			found[p.Name]++
		}
	}
	for _, s := range out {
		if p := s.Spec.Pool; found[p.Name] != p.ResourceSliceCount {
			return nil, fmt.Errorf("pool %s has %d of %d slices: try again when the node has published all", p.Name, found[p.Name], p.ResourceSliceCount)
		}
	}
	slices.SortStableFunc(out, func(x, y resourceapi.ResourceSlice) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.Name, y.Name))
	})
	return out, nil
}

func rank(s resourceapi.ResourceSlice) int {
	if len(s.Spec.Devices) == 0 {
		return 1
	}
	switch text(s.Spec.Devices[0], "type") {
	case string(gpu.KindMIG):
		return 2
	case string(gpu.KindMonitor):
		return 3
	}
	return 0
}

type template struct {
	node string
	out  []resourceapi.ResourceSlice
	// notes are the devices of each assumption.
	notes map[string][]string
	// wholes and cut are the PCI addresses of GPUs with a whole device, and with partitions.
	wholes, cut map[string]bool
}

// note adds an assumption about a device.
func (t *template) note(format, device string) { t.notes[format] = append(t.notes[format], device) }

// keep replaces the device's values that only a running node has. It returns false for a device that another node would
// not have.
func (t *template) keep(d *resourceapi.Device) bool {
	for _, taint := range d.Taints {
		if !resourceslices.OfNow(taint) {
			continue
		}
		if state := resourceslices.State(taint.Value); state == resourceslices.NoDemand || state == resourceslices.NVLink {
			return false
		}
		t.note("these devices are unavailable on the node, and available on a new one: %s", d.Name)
	}
	d.Taints = slices.DeleteFunc(d.Taints, resourceslices.OfNow)
	for i := range d.Taints {
		d.Taints[i].TimeAdded = nil // The API server sets it.
	}
	address := text(*d, "resource.kubernetes.io/pciBusID")
	switch text(*d, "type") {
	case string(gpu.KindGPU):
		t.wholes[address] = true
	case string(gpu.KindMIG):
		t.cut[address] = true
		if _, exists := d.Attributes["uuid"]; exists {
			t.note("these partitions are external, and a new node does not have them yet: %s", d.Name)
			delete(d.Attributes, "uuid")
		}
	}
	for _, name := range []resourceapi.QualifiedName{"uuid", "parentUUID"} {
		if _, ok := d.Attributes[name]; ok {
			d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: new(placeholder(address))}
		}
	}
	for _, name := range []resourceapi.QualifiedName{"fabricClusterUUID", "cliqueID"} {
		if _, ok := d.Attributes[name]; ok {
			t.note("the fabric of a new node is unknown, so "+string(name)+" is left out: %s", d.Name)
			delete(d.Attributes, name)
		}
	}
	return true
}

// placeholder is a UUID for the GPU in a slot.
func placeholder(address string) string {
	digits := strings.NewReplacer(":", "", ".", "").Replace(address)
	return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012s", digits)
}

func (t *template) add(spec resourceapi.ResourceSliceSpec) {
	spec.NodeName = &t.node
	spec.Pool = resourceapi.ResourcePool{Name: resourceslices.PoolOf(t.node, spec.Devices), Generation: 1}
	t.out = append(t.out, resourceapi.ResourceSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%02d", t.node, spec.Driver, len(t.out))},
		Spec:       spec,
	})
}

// noteOnDemand notes what the node publishes in part, or not at all, until an object asks for it. These are profiles without
// some of their placements, missing partitions of GPUs with a MIG layout, and missing groups. That is the effect of the
// setting Auto, and slices do not name their settings. A GPU has at least one placement of each profile, and two of a
// profile that takes at most half of it.
func (t *template) noteOnDemand() {
	type part struct{ model, profile string }
	wholes, largest, placements := map[string]int{}, map[string]int{}, map[part]int{}
	cuttable, parted := map[string]bool{}, map[string]bool{} // Models.
	islands, groups := map[string]bool{}, false              // islands are the largest groups of the GPUs.
	for _, s := range t.out {
		for _, d := range s.Spec.Devices {
			model, profile := text(d, "productName"), text(d, "profile")
			switch gpu.Kind(text(d, "type")) {
			case gpu.KindGPU:
				wholes[model]++
				cuttable[model] = cuttable[model] || text(d, resourceslices.MIGLayoutAttribute) != ""
				if island := text(d, "nvlinkGroup"); island != "" {
					islands[island] = true
				}
			case gpu.KindMIG:
				placements[part{model, profile}]++
				parted[model] = true
				largest[model] = max(largest[model], computeSlices(profile))
			case gpu.KindGroup:
				groups = true
			}
		}
	}
	for p, n := range placements {
		least := wholes[p.model]
		if 2*computeSlices(p.profile) <= largest[p.model] {
			least *= 2
		}
		if n < least {
			t.note("the node publishes few placements of these profiles, because no object asks for them, and a new node publishes the "+
				"others on demand; --board predicts all placements: %s", p.profile)
		}
	}
	for model := range cuttable {
		if cuttable[model] && !parted[model] {
			t.note("the node publishes no partitions, because no object asks for them, and a new node publishes them on demand; --board "+
				"predicts them, here those of %s", model)
		}
	}
	for island := range islands {
		if !groups {
			t.note("the node publishes no NVLink groups: no object asks for them, or its settings exclude them; --board predicts them, "+
				"here those of %s", island)
		}
	}
}

// computeSlices is the number before the g of a profile such as 3g.40gb, or 0.
func computeSlices(profile string) int {
	number, _, _ := strings.Cut(profile, "g.")
	n, _ := strconv.Atoi(number)
	return n
}

func (t *template) done() Template {
	count := map[string]int64{}
	for _, s := range t.out {
		count[s.Spec.Pool.Name]++
	}
	for i := range t.out {
		t.out[i].Spec.Pool.ResourceSliceCount = count[t.out[i].Spec.Pool.Name]
	}
	out := Template{Slices: t.out, Assumptions: []string{
		"the new node has the same boards in the same PCIe slots, the same versions of the NVIDIA driver and of this driver, and the same settings",
		"UUIDs are placeholders made of PCI addresses",
	}}
	for _, format := range slices.Sorted(maps.Keys(t.notes)) {
		out.Assumptions = append(out.Assumptions, fmt.Sprintf(format, strings.Join(slices.Sorted(slices.Values(t.notes[format])), ", ")))
	}
	return out
}

func text(d resourceapi.Device, name resourceapi.QualifiedName) string {
	return ptr.Deref(d.Attributes[name].StringValue, "")
}
