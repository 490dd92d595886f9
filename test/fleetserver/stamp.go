// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package fleetserver

import (
	"bytes"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/internal/testing/slicetest"
)

// blank is the node whose name and UUIDs mark the places that differ from node to node.
const blank = 77777

// NodeName returns a node's name. All have the same length.
func NodeName(node int) string { return fmt.Sprintf("node-%05d", node) }

// stamp is a slice template for many nodes.
type stamp struct {
	slice *resourceapi.ResourceSlice
	// The slice of the blank node in both encodings.
	protobuf, json blankForm
}

// blankForm is encoded text with the places of a node's own values.
type blankForm struct {
	text []byte
	// names are the positions of a node's five digits, ids those of a UUID's eight digits.
	names, ids []int
}

// stamps returns the slices of a node of a profile.
func stamps(profile string) ([]*stamp, error) {
	slices, err := slicetest.Node(profile, NodeName(blank), 0)
	if err != nil {
		return nil, err
	}
	var out []*stamp
	for i, s := range slices {
		s.TypeMeta = metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"}
		s.UID = types.UID(fmt.Sprintf("%08x-5011-4000-8000-%012x", blank, i))
		s.ResourceVersion = fmt.Sprint(firstVersion)
		s.Generation = 1
		ids := []string{string(s.UID)}
		for _, d := range s.Spec.Devices {
			for _, a := range d.Attributes {
				if a.StringValue != nil && strings.HasPrefix(*a.StringValue, "GPU-") {
					ids = append(ids, *a.StringValue)
				}
			}
		}
		one := &stamp{slice: s}
		for form, into := range map[format]*blankForm{protobuf: &one.protobuf, json: &one.json} {
			text, err := encode(s, form)
			if err != nil {
				return nil, err
			}
			*into = findBlanks(text, ids)
		}
		out = append(out, one)
	}
	return out, nil
}

func findBlanks(text []byte, ids []string) blankForm {
	out := blankForm{text: text}
	for _, at := range places(text, NodeName(blank)) {
		out.names = append(out.names, at+len("node-"))
	}
	seen := map[string]bool{}
	for _, id := range ids {
		if seen[id] {
			continue
		}
		seen[id] = true
		for _, at := range places(text, id) {
			out.ids = append(out.ids, at+len(id)-len("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"))
		}
	}
	return out
}

func places(text []byte, of string) (out []int) {
	for from := 0; ; {
		at := bytes.Index(text[from:], []byte(of))
		if at < 0 {
			return out
		}
		out = append(out, from+at)
		from += at + len(of)
	}
}

// appendFor appends the text of a node.
func (b blankForm) appendFor(dst []byte, node int) []byte {
	start := len(dst)
	dst = append(dst, b.text...)
	name, id := fmt.Sprintf("%05d", node), fmt.Sprintf("%08x", node)
	for _, at := range b.names {
		copy(dst[start+at:], name)
	}
	for _, at := range b.ids {
		copy(dst[start+at:], id)
	}
	return dst
}

// of returns a node's slice as an object that the caller may change.
func (s *stamp) of(node int) *resourceapi.ResourceSlice {
	out := s.slice.DeepCopy()
	name := NodeName(node)
	out.Name = strings.Replace(out.Name, NodeName(blank), name, 1)
	out.UID = types.UID(fmt.Sprintf("%08x%s", node, out.UID[8:]))
	out.Spec.NodeName = &name
	out.Spec.Pool.Name = strings.Replace(out.Spec.Pool.Name, NodeName(blank), name, 1)
	for _, d := range out.Spec.Devices {
		for key, a := range d.Attributes {
			if a.StringValue != nil && strings.HasPrefix(*a.StringValue, "GPU-") {
				id := fmt.Sprintf("GPU-%08x%s", node, (*a.StringValue)[len("GPU-xxxxxxxx"):])
				d.Attributes[key] = resourceapi.DeviceAttribute{StringValue: &id}
			}
		}
	}
	return out
}
