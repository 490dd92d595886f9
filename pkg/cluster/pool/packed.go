// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Packed is a ResourceSlice of any driver. It shares the Template with the slices that differ in names and identities
// only. Unlike a Slice it has lost nothing but metadata.
type Packed struct {
	*Template
	Name            string
	UID             types.UID
	ResourceVersion string
	// Node is empty if the slice is not for one node.
	Node string
	Pool resourceapi.ResourcePool
	// identities are the encoded values of the template's places.
	identities []string
}

// Template is the common part of slices. It is immutable.
type Template struct {
	// Spec has neither a pool nor a node, and the identities of its devices are empty.
	Spec   resourceapi.ResourceSliceSpec
	places []Place
}

// Place is an identity of a device.
type Place struct {
	// Device is the index of the device.
	Device int
	// Name is the name of the attribute.
	Name resourceapi.QualifiedName
}

// Unshared packs a slice with a Template of its own. It shares the slice's memory.
func Unshared(s *resourceapi.ResourceSlice) *Packed {
	p := &Packed{
		Template: &Template{Spec: s.Spec}, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion,
		Node: ptr.Deref(s.Spec.NodeName, ""), Pool: s.Spec.Pool,
	}
	p.Spec.NodeName, p.Spec.Pool = nil, resourceapi.ResourcePool{}
	return p
}

// Slice returns the whole slice. It shares memory with the Template, so the caller must not change its devices.
func (p *Packed) Slice() *resourceapi.ResourceSlice {
	out := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion}, Spec: p.Spec,
	}
	out.Spec.Pool = p.Pool
	if p.Node != "" {
		out.Spec.NodeName = &p.Node
	}
	if len(p.places) > 0 {
		out.Spec.Devices = slices.Clone(p.Spec.Devices)
	}
	last := -1
	for at, value := range p.Identities() {
		d := &out.Spec.Devices[at.Device]
		if at.Device != last {
			d.Attributes, last = maps.Clone(d.Attributes), at.Device
		}
		d.Attributes[at.Name] = value
	}
	return out
}

// Copy returns the whole slice in memory of its own.
func (p *Packed) Copy() *resourceapi.ResourceSlice { return p.Slice().DeepCopy() }

// Clique is that of a Slice.
func (p *Packed) Clique() string {
	if !slices.ContainsFunc(p.places, func(at Place) bool { return at.Name == "cliqueID" }) {
		return ""
	}
	return clique(p.Slice().Spec.Devices)
}

// Identities iterates over the attributes in which slices of the Template differ.
func (p *Packed) Identities() iter.Seq2[Place, resourceapi.DeviceAttribute] {
	return func(yield func(Place, resourceapi.DeviceAttribute) bool) {
		for i, at := range p.places {
			var a resourceapi.DeviceAttribute
			if a.Unmarshal([]byte(p.identities[i])) != nil {
				a = resourceapi.DeviceAttribute{} // Like an attribute of an unknown kind.
			}
			if !yield(at, a) {
				return
			}
		}
	}
}

// Templates stores each Template once. It is not safe for concurrent use.
type Templates struct {
	known map[[sha256.Size]byte]*Template
	// common is the encoded common part of a slice, with its places.
	common []byte
	places []Place
}

// Pack reads a ResourceSlice in protobuf, without an envelope. It does not keep raw. Only the first slice of a Template
// is decoded as a whole, which takes ten times as long.
func (t *Templates) Pack(raw []byte) (*Packed, error) {
	t.common, t.places = t.common[:0], t.places[:0]
	out := &Packed{}
	err := eachField(raw, func(n protowire.Number, value, _ []byte) error {
		switch n {
		case 1:
			return out.metadata(value)
		case 2:
			return t.spec(out, value)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ResourceSlice %s: %w", out.Name, err)
	}
	key := sha256.Sum256(t.common)
	if out.Template = t.known[key]; out.Template != nil {
		return out, nil
	}
	var whole resourceapi.ResourceSlice
	if err := whole.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("ResourceSlice %s: %w", out.Name, err)
	}
	out.Template = &Template{Spec: whole.Spec, places: slices.Clone(t.places)}
	out.Spec.NodeName, out.Spec.Pool = nil, resourceapi.ResourcePool{}
	for _, at := range out.places {
		out.Spec.Devices[at.Device].Attributes[at.Name] = resourceapi.DeviceAttribute{}
	}
	if t.known == nil {
		t.known = map[[sha256.Size]byte]*Template{}
	}
	t.known[key] = out.Template
	return out, nil
}

func (p *Packed) metadata(raw []byte) error {
	return eachField(raw, func(n protowire.Number, value, _ []byte) error {
		switch n {
		case 1:
			p.Name = string(value)
		case 5:
			p.UID = types.UID(value)
		case 6:
			p.ResourceVersion = string(value)
		}
		return nil
	})
}

func (t *Templates) spec(p *Packed, raw []byte) error {
	device := 0
	return eachField(raw, func(n protowire.Number, value, whole []byte) error {
		switch n {
		case 2:
			return p.Pool.Unmarshal(value)
		case 3:
			p.Node = string(value)
		case 6:
			// Groups keep the end of a device apart from the next field, without a length.
			t.common = protowire.AppendTag(t.common, n, protowire.StartGroupType)
			err := t.device(p, device, value)
			t.common = protowire.AppendTag(t.common, n, protowire.EndGroupType)
			device++
			return err
		default:
			t.common = append(t.common, whole...)
		}
		return nil
	})
}

func (t *Templates) device(p *Packed, device int, raw []byte) error {
	return eachField(raw, func(n protowire.Number, value, whole []byte) error {
		if n != 2 {
			t.common = append(t.common, whole...)
			return nil
		}
		var name, attribute []byte
		if err := eachField(value, func(n protowire.Number, value, _ []byte) error {
			switch n {
			case 1:
				name = value
			case 2:
				attribute = value
			}
			return nil
		}); err != nil {
			return err
		}
		if !Identity(string(name)) {
			t.common = append(t.common, whole...)
			return nil
		}
		at := Place{device, resourceapi.QualifiedName(name)}
		if slices.Contains(t.places[max(0, len(t.places)-len(identities)):], at) {
			return errors.New("a device has an attribute twice")
		}
		t.places = append(t.places, at)
		t.common = protowire.AppendTag(t.common, n, protowire.StartGroupType)
		t.common = protowire.AppendBytes(t.common, name)
		t.common = protowire.AppendTag(t.common, n, protowire.EndGroupType)
		p.identities = append(p.identities, p.interned(attribute))
		return nil
	})
}

// interned returns the value, in the memory of an equal one of the slice: all partitions of a GPU name it.
func (p *Packed) interned(value []byte) string {
	for _, known := range slices.Backward(p.identities) {
		if known == string(value) {
			return known
		}
	}
	return string(value)
}

// eachField calls f for the fields of a message: with the contents of those with a length, and with the whole field.
func eachField(raw []byte, f func(n protowire.Number, value, whole []byte) error) error {
	for len(raw) > 0 {
		number, kind, head := protowire.ConsumeTag(raw)
		if head < 0 {
			return protowire.ParseError(head)
		}
		size := protowire.ConsumeFieldValue(number, kind, raw[head:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		var value []byte
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(raw[head:])
		}
		if err := f(number, value, raw[:head+size]); err != nil {
			return err
		}
		raw = raw[head+size:]
	}
	return nil
}
