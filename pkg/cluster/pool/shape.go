// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"weak"

	"google.golang.org/protobuf/encoding/protowire"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// Identity reports whether an attribute of the driver's domain differs among boards or fabrics of one make. Shapes are
// compared without these.
func Identity(name string) bool {
	switch resourceapi.QualifiedName(name) {
	case "uuid", "parentUUID", fabricAttribute, cliqueAttribute:
		return true
	}
	return false
}

// maxIdentities is the number of identities of a device.
const maxIdentities = 4

// Shape is the common part of equal ResourceSlices of different nodes. It is immutable.
type Shape struct {
	// Spec has neither a pool nor a node, and no taints of unhealthy or cordoned devices. Its identities come from any
	// one slice.
	Spec resourceapi.ResourceSliceSpec
	// Kinds are the kinds of the devices, by the same index.
	Kinds []Kind
	// renamed are the kinds of renamed shares.
	renamed []Kind
	places  []Place
	// Pool.With adds these.
	possible []*Shape
	// layouts are the MIG layouts of the whole GPUs.
	layouts []string
	// shareable means that claims can share devices once an object asks for it.
	shareable bool
	// of keeps the other shapes of the addition that made this one.
	of *addition
}

// Place is an identity of a device.
type Place struct {
	// Device is the index of the device, and Name the attribute.
	Device int
	Name   resourceapi.QualifiedName
}

func newShape(spec resourceapi.ResourceSliceSpec, places []Place) *Shape {
	s := &Shape{Spec: spec, places: slices.Clone(places)}
	s.Spec.NodeName, s.Spec.Pool = nil, resourceapi.ResourcePool{}
	for i, d := range spec.Devices {
		if slices.ContainsFunc(d.Taints, wire.OfNow) {
			s.Spec.Devices[i].Taints = slices.DeleteFunc(slices.Clone(d.Taints), wire.OfNow)
		}
		kind := KindOf(d)
		s.Kinds = append(s.Kinds, kind)
		if ptr.Deref(d.Attributes["renameByDefault"].BoolValue, false) {
			s.renamed = append(s.renamed, Kind{Type: kind.Type, Profile: kind.Profile, GPUs: 1, Renamed: true})
		}
	}
	s.possible, s.layouts = possible(s), layoutsOf(s)
	s.shareable = slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
		_, ok := resourceslices.Shareable(d)
		return ok
	})
	return s
}

// Shapes stores each Shape once, while references to it exist. It is safe for concurrent use.
type Shapes struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]weak.Pointer[Shape]
	// packers have the buffers of earlier slices, whose growth would take a third of the time.
	packers sync.Pool
}

// Pack reads a ResourceSlice in protobuf, without an envelope. It does not keep raw. Only the first slice of a Shape is
// decoded as a whole, which takes ten times as long.
func (s *Shapes) Pack(raw []byte) (*Slice, error) { return s.pack(raw, nil) }

// Trim converts a ResourceSlice, without its identities. The caller must not use it afterwards.
func (s *Shapes) Trim(in *resourceapi.ResourceSlice) Slice {
	out := *s.Convert(in)
	out.identities = nil
	return out
}

// Convert converts a ResourceSlice. The caller must not use it afterwards. A slice without a Shape has no devices; no
// API server can return one.
func (s *Shapes) Convert(in *resourceapi.ResourceSlice) *Slice {
	in.ManagedFields = nil
	raw, err := in.Marshal() // It sorts maps.
	var out *Slice
	if err == nil {
		out, err = s.pack(raw, in)
	}
	if err != nil {
		out = Unshared(in)
		out.Shape = nil
	}
	return out
}

// pack reads raw; decoded is the same slice, or nil.
func (s *Shapes) pack(raw []byte, decoded *resourceapi.ResourceSlice) (*Slice, error) {
	p, _ := s.packers.Get().(*packer)
	if p == nil {
		p = &packer{}
	}
	defer s.packers.Put(p)
	p.out, p.common, p.places, p.identities = &Slice{}, p.common[:0], p.places[:0], p.identities[:0]
	if err := p.slice(raw); err != nil {
		return nil, fmt.Errorf("ResourceSlice %s: %w", p.out.Name, err)
	}
	p.out.identities = append([]string(nil), p.identities...) // nil without any.
	key := sha256.Sum256(p.common)
	p.out.Shape = s.shape(key)
	if p.out.Shape == nil {
		if decoded == nil {
			decoded = &resourceapi.ResourceSlice{}
			if err := decoded.Unmarshal(raw); err != nil {
				return nil, fmt.Errorf("ResourceSlice %s: %w", p.out.Name, err)
			}
		}
		p.out.Shape = s.add(key, newShape(decoded.Spec, p.places))
	}
	p.out.Clique = p.out.clique()
	return p.out, nil
}

func (s *Shapes) shape(key [sha256.Size]byte) *Shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[key].Value()
}

// add stores a shape, and returns the one that is stored already.
func (s *Shapes) add(key [sha256.Size]byte, shape *Shape) *Shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.known[key].Value(); known != nil {
		return known
	}
	if s.known == nil {
		s.known = map[[sha256.Size]byte]weak.Pointer[Shape]{}
	}
	s.known[key] = weak.Make(shape)
	runtime.AddCleanup(shape, s.forget, key)
	return shape
}

// forget drops a shape without references, unless a new one has its key.
func (s *Shapes) forget(key [sha256.Size]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[key].Value() == nil {
		delete(s.known, key)
	}
}

// Len returns the number of stored shapes.
func (s *Shapes) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.known)
}

// packer splits an encoded slice.
type packer struct {
	out *Slice
	// common is the encoded common part of the slice, with its places.
	common     []byte
	places     []Place
	identities []string
}

func (p *packer) slice(raw []byte) error {
	return eachField(raw, func(f field) error {
		switch f.number {
		case 1:
			return p.metadata(f.value)
		case 2:
			return p.spec(f.value)
		}
		return nil
	})
}

// Metadata decodes the metadata of a ResourceSlice in protobuf.
func Metadata(raw []byte) (out metav1.ObjectMeta, err error) {
	err = eachField(raw, func(f field) error {
		if f.number == 1 {
			return out.Unmarshal(f.value)
		}
		return nil
	})
	return out, err
}

func (p *packer) metadata(raw []byte) error {
	return eachField(raw, func(f field) error {
		switch f.number {
		case 1:
			p.out.Name = string(f.value)
		case 5:
			p.out.UID = types.UID(f.value)
		case 6:
			p.out.ResourceVersion = string(f.value)
		}
		return nil
	})
}

func (p *packer) spec(raw []byte) error {
	device := 0
	return eachField(raw, func(f field) error {
		switch f.number {
		case 2:
			return p.out.Pool.Unmarshal(f.value)
		case 3:
			p.out.Node = string(f.value)
		case 6:
			// Groups keep the end of a device apart from the next field, without a length.
			p.common = protowire.AppendTag(p.common, f.number, protowire.StartGroupType)
			err := p.device(device, f.value)
			p.common = protowire.AppendTag(p.common, f.number, protowire.EndGroupType)
			device++
			return err
		default:
			p.common = append(p.common, f.whole...)
		}
		return nil
	})
}

func (p *packer) device(device int, raw []byte) error {
	return eachField(raw, func(f field) error {
		switch f.number {
		case 2:
			return p.attribute(device, f)
		case 8:
			var t resourceapi.DeviceTaint
			if err := t.Unmarshal(f.value); err != nil {
				return err
			}
			if wire.OfNow(t) {
				p.out.Unhealthy = append(p.out.Unhealthy, Tainted{device, t})
				return nil
			}
		}
		p.common = append(p.common, f.whole...)
		return nil
	})
}

// attribute reads an entry of the map of attributes: 1 is the name, and 2 the value.
func (p *packer) attribute(device int, entry field) error {
	var name, value []byte
	for raw := entry.value; len(raw) > 0; {
		f, err := nextField(raw)
		if err != nil {
			return err
		}
		switch f.number {
		case 1:
			name = f.value
		case 2:
			value = f.value
		}
		raw = raw[len(f.whole):]
	}
	if !Identity(string(name)) {
		p.common = append(p.common, entry.whole...)
		return nil
	}
	at := Place{device, resourceapi.QualifiedName(name)}
	if slices.Contains(p.places[max(0, len(p.places)-maxIdentities):], at) {
		return errors.New("a device has an attribute twice")
	}
	p.places = append(p.places, at)
	p.common = protowire.AppendTag(p.common, entry.number, protowire.StartGroupType)
	p.common = protowire.AppendBytes(p.common, name)
	p.common = protowire.AppendTag(p.common, entry.number, protowire.EndGroupType)
	p.identities = append(p.identities, p.interned(value))
	return nil
}

// interned returns the value, in the memory of an equal one of the slice: all partitions of a GPU name it.
func (p *packer) interned(value []byte) string {
	for _, known := range slices.Backward(p.identities) {
		if known == string(value) {
			return known
		}
	}
	return string(value)
}

// field is an encoded field of a message.
type field struct {
	number protowire.Number
	// value has the contents of a field with a length.
	value, whole []byte
}

func eachField(raw []byte, f func(field) error) error {
	for len(raw) > 0 {
		one, err := nextField(raw)
		if err == nil {
			err = f(one)
		}
		if err != nil {
			return err
		}
		raw = raw[len(one.whole):]
	}
	return nil
}

func nextField(raw []byte) (field, error) {
	number, kind, head := protowire.ConsumeTag(raw)
	if head < 0 {
		return field{}, protowire.ParseError(head)
	}
	if kind == protowire.BytesType {
		value, size := protowire.ConsumeBytes(raw[head:])
		if size < 0 {
			return field{}, protowire.ParseError(size)
		}
		return field{number, value, raw[:head+size]}, nil
	}
	size := protowire.ConsumeFieldValue(number, kind, raw[head:])
	if size < 0 {
		return field{}, protowire.ParseError(size)
	}
	return field{number: number, whole: raw[:head+size]}, nil
}

// Unshared converts a slice, with a Shape of its own. It shares memory with the slice, which must not change.
func Unshared(s *resourceapi.ResourceSlice) *Slice {
	out := &Slice{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion},
		Pool:       s.Spec.Pool,
	}
	if s.Spec.NodeName != nil {
		out.Node = *s.Spec.NodeName
	}
	spec := s.Spec
	spec.Devices = slices.Clone(spec.Devices)
	for i, d := range spec.Devices {
		for _, t := range d.Taints {
			if wire.OfNow(t) {
				out.Unhealthy = append(out.Unhealthy, Tainted{i, t})
			}
		}
	}
	out.Shape = newShape(spec, nil)
	out.Clique = out.clique()
	return out
}
