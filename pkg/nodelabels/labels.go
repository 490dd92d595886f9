// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodelabels builds the labels of a node from its published GPUs. Names and values follow NVIDIA's feature
// discovery, so existing node selectors match.
package nodelabels

import (
	"cmp"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/fleet"
	"gpu-dra-driver/pkg/gpu"
)

// prefix is that of feature discovery.
const prefix = "nvidia.com/"

// unusual matches the characters that feature discovery removes from product names.
var unusual = regexp.MustCompile(`[^A-Za-z0-9-_. ]`)

// Of returns a node's labels. A node with several models gets the labels of the most frequent one.
func Of(p fleet.Pool, driver string) map[string]string {
	models, parts := map[string][]resourceapi.Device{}, map[string][]resourceapi.Device{}
	parents := map[string]bool{}
	cut, capable := false, false
	for d, kind := range p.Devices() {
		switch kind.Type {
		case gpu.KindGPU:
			models[kind.Product] = append(models[kind.Product], d)
			capable = capable || ptr.Deref(d.Attributes["migCapable"].BoolValue, false)
		case gpu.KindMIG:
			cut, capable = true, true
			if parent := fleet.Text(d, "parentUUID"); !parents[parent] {
				parents[parent] = true
				d.Capacity = nil // It is the partition's, not the GPU's.
				parts[kind.Product] = append(parts[kind.Product], d)
			}
		}
	}
	if len(models) == 0 {
		models = parts // An administrator partitioned all GPUs, so no whole GPU is published.
	}
	if len(models) == 0 {
		return nil
	}
	names := slices.SortedFunc(maps.Keys(models), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(models[b]), len(models[a])), cmp.Compare(a, b))
	})
	model := models[names[0]]
	l := labels{}
	l[selected] = "true"
	l.put("mig.capable", strconv.FormatBool(capable))
	if cut {
		// With this driver partitions are separate devices, which is the meaning of "mixed".
		l.put("mig.strategy", "mixed")
	}
	l.board(names[0], model)
	l.driver(model[0])
	for _, s := range p.Slices {
		l.put("gpu.clique", s.Clique)
	}
	most := island(model)
	l[driver+"/nvlink-enabled"] = strconv.FormatBool(most > 1)
	if most > 1 {
		l[driver+"/nvlink-gpus-per-island"] = strconv.Itoa(most)
	}
	maps.DeleteFunc(l, func(_, value string) bool { return len(validation.IsValidLabelValue(value)) > 0 })
	return l
}

type labels map[string]string

func (l labels) put(name, value string) {
	if value != "" {
		l[prefix+name] = value
	}
}

// board adds the labels of one model's GPUs.
func (l labels) board(product string, model []resourceapi.Device) {
	d := model[0]
	replicas, strategy := shared(d)
	name := strings.Join(strings.Fields(unusual.ReplaceAllString(product, "")), "-")
	if replicas > 1 {
		name += "-SHARED"
	}
	l.put("gpu.product", name)
	l.put("gpu.count", strconv.Itoa(len(model)))
	l.put("gpu.replicas", strconv.Itoa(replicas))
	l.put("gpu.sharing-strategy", strategy)
	l.put("mps.capable", strconv.FormatBool(strategy == "mps"))
	if memory, ok := d.Capacity["memory"]; ok {
		l.put("gpu.memory", strconv.FormatInt(memory.Value.Value()>>20, 10))
	}
	if parts := strings.Split(fleet.Text(d, "cudaComputeCapability"), "."); len(parts) == 3 {
		l.put("gpu.family", cmp.Or(families[parts[0]+"."+parts[1]], families[parts[0]], "undefined"))
		l.put("gpu.compute.major", parts[0])
		l.put("gpu.compute.minor", parts[1])
	}
}

// shared returns the number of default shares of a GPU and their sharing strategy.
func shared(d resourceapi.Device) (replicas int, strategy string) {
	memory := d.Capacity["memory"]
	if memory.RequestPolicy == nil || memory.RequestPolicy.Default == nil || memory.RequestPolicy.Default.Value() <= 0 {
		return 1, "none"
	}
	replicas = max(1, int(memory.Value.Value()/memory.RequestPolicy.Default.Value()))
	if replicas == 1 {
		return 1, "none"
	}
	return replicas, fleet.Text(d, "isolation")
}

// driver adds the versions of the kernel driver and of CUDA.
func (l labels) driver(d resourceapi.Device) {
	raw := fleet.Text(d, "driverVersionRaw")
	if parts := strings.Split(raw, "."); len(parts) == 2 || len(parts) == 3 {
		parts = append(parts, "")
		for i, names := range [][]string{
			{"cuda.driver-version.major", "cuda.driver.major"}, {"cuda.driver-version.minor", "cuda.driver.minor"},
			{"cuda.driver-version.revision", "cuda.driver.rev"},
		} {
			for _, name := range names {
				l[prefix+name] = parts[i] // With a two-part version the revision label is present and empty.
			}
		}
		l.put("cuda.driver-version.full", raw)
	}
	if parts := strings.Split(fleet.Text(d, "cudaDriverVersion"), "."); len(parts) == 3 {
		l.put("cuda.runtime-version.major", parts[0])
		l.put("cuda.runtime.major", parts[0])
		l.put("cuda.runtime-version.minor", parts[1])
		l.put("cuda.runtime.minor", parts[1])
		l.put("cuda.runtime-version.full", parts[0]+"."+parts[1])
	}
}

// island returns the size of the largest NVLink island.
func island(model []resourceapi.Device) int {
	members, most := map[string]int{}, 0
	for _, d := range model {
		if group := fleet.Text(d, "nvlinkGroup"); group != "" {
			members[group]++
			most = max(most, members[group])
		}
	}
	return most
}

// families are the architectures of compute capabilities, as named by feature discovery.
var families = map[string]string{
	"5": "maxwell", "6": "pascal",
	"7": "turing", "7.0": "volta", "7.1": "volta", "7.2": "volta", "7.3": "volta", "7.4": "volta",
	"8": "ampere", "8.9": "ada-lovelace", "9": "hopper", "10": "blackwell", "12": "blackwell",
}

// legacy is the annotation of the driver gpu.nvidia.com, and of every driver in older versions.
const legacy = "gpu-dra-driver/labels"

// Written returns the annotation of a node with the labels and values that the controller of a driver wrote. A label with
// another value belongs to another writer. Each driver has its own, so that two of them do not fight over labels.
func Written(driver string) string {
	if driver == "gpu.nvidia.com" {
		return legacy
	}
	return driver + "/labels"
}

// written returns the labels that the driver's controller wrote. current is false if the annotation must be rewritten: an
// unreadable one proves nothing, so no label counts as ours, and an older version wrote another one.
func written(annotations map[string]string, driver string) (mine map[string]string, current bool) {
	mine = map[string]string{}
	text, current := annotations[Written(driver)]
	switch {
	case !current && strings.Contains(annotations[legacy], `"`+driver+`/nvlink-enabled"`):
		text = annotations[legacy]
	case !current:
		return mine, true
	}
	if json.Unmarshal([]byte(text), &mine) != nil || mine == nil {
		return map[string]string{}, false
	}
	return mine, current
}

// selected is a label that Plan never removes, because the plugin's DaemonSet selects nodes by it. On a node that
// publishes nothing for a while the plugin would end, and could neither publish again nor unprepare claims.
const selected = prefix + "gpu.present"

// Change holds the values to write to a node; nil removes the key. An empty Change writes nothing.
type Change struct {
	Labels, Annotations map[string]*string
}

// None reports whether the Change is empty.
func (c Change) None() bool { return len(c.Labels)+len(c.Annotations) == 0 }

// Plan compares a node's labels and annotations with the labels that a driver wants. It changes and removes only labels
// that the driver's controller wrote, so that two writers never overwrite each other in turns.
func Plan(has, annotations, want map[string]string, driver string) Change {
	mine, current := written(annotations, driver)
	change := Change{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	keeps := map[string]string{}
	for key, value := range want {
		now, present := has[key]
		last, ours := mine[key]
		switch {
		case present && now == value && ours, present && ours && now == last, !present:
			keeps[key] = value
			if !present || now != value {
				change.Labels[key] = &value
			}
		}
	}
	for key, last := range mine {
		_, wanted := want[key]
		now, present := has[key]
		switch {
		case !present || wanted || now != last:
		case key == selected:
			keeps[key] = last
		default:
			change.Labels[key] = nil
		}
	}
	if !maps.Equal(keeps, mine) || !current {
		change.Annotations[Written(driver)] = nil
		if len(keeps) > 0 {
			text, _ := json.Marshal(keeps) // Strings always encode, and encoding/json sorts keys.
			change.Annotations[Written(driver)] = new(string(text))
		}
		if _, present := annotations[Written(driver)]; !present && len(keeps) == 0 {
			delete(change.Annotations, Written(driver))
		}
	}
	return change
}

// Concerns reports whether Plan reads a label or annotation with this key.
func Concerns(key, driver string) bool {
	return strings.HasPrefix(key, prefix) || strings.HasPrefix(key, driver+"/") || key == legacy
}

// Patch encodes the change as a JSON merge patch for a node at a resource version.
func (c Change) Patch(resourceVersion string) []byte {
	metadata := map[string]any{"resourceVersion": resourceVersion}
	for name, values := range map[string]map[string]*string{"labels": c.Labels, "annotations": c.Annotations} {
		if len(values) > 0 {
			metadata[name] = values
		}
	}
	data, _ := json.Marshal(map[string]any{"metadata": metadata}) // Strings and nil always encode.
	return data
}

func (c Change) Keys() []string { return slices.Sorted(maps.Keys(c.Labels)) }
