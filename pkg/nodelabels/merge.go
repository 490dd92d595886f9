// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodelabels

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Written is the annotation of a node with the labels and values that the controller wrote. A label with another value
// belongs to another writer.
const Written = "gpu-dra-driver/labels"

// Change holds the values to write to a node; nil removes the key. An empty Change writes nothing.
type Change struct {
	Labels, Annotations map[string]*string
}

// None reports whether the Change is empty.
func (c Change) None() bool { return len(c.Labels)+len(c.Annotations) == 0 }

// Plan compares a node's labels and annotations with the wanted labels. It changes and removes only labels that the
// controller wrote, so that two writers never overwrite each other in turns.
func Plan(has, annotations, want map[string]string) Change {
	mine, readable := map[string]string{}, true
	if text, ok := annotations[Written]; ok {
		// An unreadable annotation proves nothing: no label counts as ours, and the annotation is rewritten.
		readable = json.Unmarshal([]byte(text), &mine) == nil
		if !readable || mine == nil {
			mine = map[string]string{}
		}
	}
	change := Change{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	keeps := map[string]string{}
	for key, value := range want {
		now, present := has[key]
		last, written := mine[key]
		switch {
		case present && now == value && written, present && written && now == last, !present:
			keeps[key] = value
			if !present || now != value {
				change.Labels[key] = &value
			}
		}
	}
	for key, last := range mine {
		_, wanted := want[key]
		if now, present := has[key]; present && !wanted && now == last {
			change.Labels[key] = nil
		}
	}
	if !maps.Equal(keeps, mine) || !readable {
		change.Annotations[Written] = nil
		if len(keeps) > 0 {
			text, _ := json.Marshal(keeps) // Strings always encode, and encoding/json sorts keys.
			change.Annotations[Written] = new(string(text))
		}
		if _, present := annotations[Written]; !present && len(keeps) == 0 {
			delete(change.Annotations, Written)
		}
	}
	return change
}

// Concerns reports whether Of can return a label with this key.
func Concerns(key, driver string) bool {
	return strings.HasPrefix(key, prefix) || strings.HasPrefix(key, driver+"/")
}

// Patch encodes the change as a JSON merge patch for a node at a resource version.
func (c Change) Patch(resourceVersion string) []byte {
	metadata := map[string]any{"resourceVersion": resourceVersion}
	for name, values := range map[string]map[string]*string{"labels": c.Labels, "annotations": c.Annotations} {
		if len(values) > 0 {
			metadata[name] = values
		}
	}
	data, _ := json.Marshal(map[string]any{"metadata": metadata}) // Strings and nils always encode.
	return data
}

// Keys lists the labels of a change, sorted.
func (c Change) Keys() []string { return slices.Sorted(maps.Keys(c.Labels)) }
