// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodelabels

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Written is the annotation of a node that says which labels, with which values, were written here. A label that has
// another value now, or was there before, is somebody else's.
const Written = "gpu-dra-driver/labels"

// Change is what to write to a node: a value, or nil where the key is to go. Empty: nothing.
type Change struct {
	Labels, Annotations map[string]*string
}

// None says that there is nothing to write.
func (c Change) None() bool { return len(c.Labels)+len(c.Annotations) == 0 }

// Plan compares a node's labels and annotations with the labels it should have. Only labels that were written here are
// changed or removed, so two writers never take turns.
func Plan(has, annotations, want map[string]string) Change {
	mine, readable := map[string]string{}, true
	if text, ok := annotations[Written]; ok {
		// What cannot be read says nothing: no label counts as ours, and the annotation is written anew.
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

// Concerns says whether a label can be one of those that Of gives.
func Concerns(key, driver string) bool {
	return strings.HasPrefix(key, prefix) || strings.HasPrefix(key, driver+"/")
}

// Patch is the change as a JSON merge patch of a node at a resource version.
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

// Keys are the labels of a change, in order.
func (c Change) Keys() []string { return slices.Sorted(maps.Keys(c.Labels)) }
