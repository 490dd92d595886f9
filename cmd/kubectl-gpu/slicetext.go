// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/pkg/cluster/pool"
)

// jsonItem is the indentation of the items of a list in JSON: the list is indented once, its items twice.
const jsonItem, jsonIndent = "        ", "    "

// jsonTexts prints ResourceSlices as items of a list in JSON. Slices of one Shape differ in few values, so the text of
// the first one is cut there, and serves the others: that takes a tenth of the time. It is safe for concurrent use.
type jsonTexts struct {
	mu    sync.Mutex
	known map[*pool.Shape][][]byte
}

// maxTexts limits the memory for a cluster in which no two slices are alike: a text has up to 200 kB.
const maxTexts = 200

// of returns the text of a slice with its metadata, or none if it differs from others of its Shape in more.
func (t *jsonTexts) of(s *resourceapi.ResourceSlice, p *pool.Slice) []byte {
	values := []any{fieldsOf(&s.ObjectMeta)}
	for _, a := range p.Identities() {
		values = append(values, a.StringValue)
	}
	values = append(values, p.Node, fieldsOf(&p.Pool))
	t.mu.Lock()
	parts, known := t.known[p.Shape]
	t.mu.Unlock()
	if !known {
		parts = cut(p, len(values))
		t.mu.Lock()
		if t.known == nil || len(t.known) == maxTexts {
			t.known = map[*pool.Shape][][]byte{}
		}
		t.known[p.Shape] = parts
		t.mu.Unlock()
	}
	if p.Node == "" || len(p.Unhealthy) > 0 || parts == nil || slices.Contains(values, any((*string)(nil))) {
		return nil
	}
	out := slices.Clone(parts[0])
	for i, value := range values {
		depth := jsonItem + jsonIndent
		if i > 0 {
			depth += jsonIndent
		}
		text, _ := json.MarshalIndent(value, depth, jsonIndent) // Plain values have a text.
		out = append(append(out, text...), parts[i+1]...)
	}
	return out
}

// cut returns the text of slices of a Shape between the values that differ, or none if they are not in order.
func cut(p *pool.Slice, values int) (parts [][]byte) {
	mark, count := rand.Text(), 0 // No value of the cluster has it.
	next := func() *string {
		count++
		return new(fmt.Sprint(mark, count, "."))
	}
	s, metadata := listed(p.ResourceSlice()), next()
	for at := range p.Identities() {
		s.Spec.Devices[at.Device].Attributes[at.Name] = resourceapi.DeviceAttribute{StringValue: next()}
	}
	s.Spec.NodeName = next()
	object, spec := fieldsOf(s), fieldsOf(&s.Spec)
	spec["pool"] = next()
	object["metadata"], object["spec"] = metadata, spec
	text, _ := json.MarshalIndent(object, jsonItem, jsonIndent)
	for i := range values {
		part, rest, found := bytes.Cut(text, fmt.Appendf(nil, `"%s%d."`, mark, i+1))
		if !found {
			return nil
		}
		parts, text = append(parts, part), rest
	}
	return append(parts, text)
}

// listed completes a slice of a list, whose items are sent without their kind.
func listed(s *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	s.ManagedFields = nil
	s.APIVersion, s.Kind = "resource.k8s.io/v1", "ResourceSlice"
	return s
}

// fieldsOf returns an API type as kubectl prints it: with the keys of objects in order.
func fieldsOf(of any) map[string]any {
	out, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(of) // It fails only for other types than structs.
	return out
}
