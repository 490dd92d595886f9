// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/pkg/cluster/pool"
)

// jsonItem is the indentation of the items of a list in JSON: the list is indented once, its items twice.
const jsonItem, jsonIndent = "        ", "    "

// jsonTexts prints ResourceSlices as items of a list in JSON. Slices of one Shape differ in few values, so the text of
// the first one is cut there, and serves the others: that takes a tenth of the time. It is safe for concurrent use.
type jsonTexts struct {
	mu    sync.Mutex
	known map[*pool.Shape]cutText
}

// maxTexts limits the memory for a cluster in which no two slices are alike: a text has up to 200 kB.
const maxTexts = 200

// cutText is the text of a slice without the values that differ within a Shape. Before each part but the first comes the
// value with the index of values.
type cutText struct {
	parts  [][]byte
	values []int
}

// of returns the text of an encoded slice.
func (t *jsonTexts) of(raw []byte, p *pool.Slice) ([]byte, error) {
	values, err := ownValues(raw, p)
	if err != nil {
		return nil, err
	}
	if values == nil || p.Node == "" || len(p.Unhealthy) > 0 {
		var s resourceapi.ResourceSlice
		if err := s.Unmarshal(raw); err != nil {
			return nil, err
		}
		return indented(listed(&s), jsonItem)
	}
	t.mu.Lock()
	text, known := t.known[p.Shape]
	t.mu.Unlock()
	if !known {
		if text, err = cut(p); err != nil {
			return nil, err
		}
		t.mu.Lock()
		if t.known == nil || len(t.known) == maxTexts {
			t.known = map[*pool.Shape]cutText{}
		}
		t.known[p.Shape] = text
		t.mu.Unlock()
	}
	var out bytes.Buffer
	for i, part := range text.parts {
		if i > 0 {
			out.Write(values[text.values[i-1]])
		}
		out.Write(part)
	}
	return out.Bytes(), nil
}

// ownValues returns the texts of the values that slices of a Shape do not share: the metadata, the pool, the node and the
// identities. It returns none if an identity is no string.
func ownValues(raw []byte, p *pool.Slice) (out [][]byte, err error) {
	meta, err := pool.Metadata(raw)
	if err != nil {
		return nil, err
	}
	meta.ManagedFields = nil
	add := func(value any, prefix string) {
		var text []byte
		if err == nil {
			text, err = indented(value, prefix)
		}
		out = append(out, text)
	}
	add(&meta, jsonItem+jsonIndent)
	add(&p.Pool, jsonItem+jsonIndent+jsonIndent)
	add(p.Node, "")
	for _, a := range p.Identities() {
		if a.StringValue == nil {
			return nil, err
		}
		add(*a.StringValue, "")
	}
	return out, err
}

// cut returns the text of slices of a Shape.
func cut(p *pool.Slice) (out cutText, err error) {
	mark := rand.Text() // No value of the cluster has it.
	s, marks := p.ResourceSlice(), 3
	s.Spec.NodeName = new(mark + "2")
	for at := range p.Identities() {
		s.Spec.Devices[at.Device].Attributes[at.Name] = resourceapi.DeviceAttribute{StringValue: new(mark + strconv.Itoa(marks))}
		marks++
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(listed(s))
	if err != nil {
		return out, err
	}
	fields["metadata"] = mark + "0"
	if err := unstructured.SetNestedField(fields, mark+"1", "spec", "pool"); err != nil {
		return out, err
	}
	text, err := indented(fields, jsonItem)
	if err != nil {
		return out, err
	}
	end := 0
	for _, at := range regexp.MustCompile(`"`+mark+`(\d+)"`).FindAllSubmatchIndex(text, -1) {
		n, _ := strconv.Atoi(string(text[at[2]:at[3]])) // The expression matches numbers.
		out.parts, out.values = append(out.parts, text[end:at[0]]), append(out.values, n)
		end = at[1]
	}
	out.parts = append(out.parts, text[end:])
	if len(out.values) != marks {
		return out, fmt.Errorf("print ResourceSlice %s: %d of %d values are in its text", p.Name, len(out.values), marks)
	}
	return out, nil
}

// listed completes a slice of a list, whose items are sent without their kind.
func listed(s *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	s.ManagedFields = nil
	s.APIVersion, s.Kind = "resource.k8s.io/v1", "ResourceSlice"
	return s
}

// indented returns a value in JSON as kubectl prints it: with the keys of objects in order.
func indented(value any, prefix string) ([]byte, error) {
	if _, isMap := value.(map[string]any); !isMap && prefix != "" {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(value)
		if err != nil {
			return nil, err
		}
		value = fields
	}
	return json.MarshalIndent(value, prefix, jsonIndent)
}
