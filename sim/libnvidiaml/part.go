// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #include "abi.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
)

// part identifies the instance or MIG device of a handle. Its mark distinguishes it from a later one with the same
// ID.
type part struct {
	kind         kind
	slot, gi, ci int
	mark         string
}

type kind byte

const (
	gpuInstance kind = iota + 1
	computeInstance
	migDevice
)

// parts holds the assigned handles. A part has one handle for its life; a handle is reused only after all others.
var parts = struct {
	sync.Mutex
	byIndex []part
	index   map[part]int
	next    int
}{index: map[part]int{}}

func gpuInstancePart(slot int, i *engine.Instance) part {
	return part{kind: gpuInstance, slot: slot, gi: i.ID, mark: fmt.Sprint(i.ProfileID, i.Start)}
}

func computePart(k kind, slot, gi int, c *engine.Compute) part {
	return part{kind: k, slot: slot, gi: gi, ci: c.ID, mark: c.UUID}
}

func handleOfPart(p part) C.handle {
	parts.Lock()
	defer parts.Unlock()
	n, known := parts.index[p]
	if !known {
		n = parts.next
		parts.next = (parts.next + 1) % C.GPUSIM_PARTS
		if n == len(parts.byIndex) {
			parts.byIndex = append(parts.byIndex, part{})
		}
		delete(parts.index, parts.byIndex[n])
		parts.byIndex[n], parts.index[p] = p, n
	}
	return C.handle(unsafe.Pointer(&C.gpusimParts[n]))
}

// partOf returns the part of a handle, if the handle was assigned and has the kind.
func partOf(h C.handle, k kind) (part, bool) {
	at := uintptr(h) - uintptr(unsafe.Pointer(&C.gpusimParts[0]))
	parts.Lock()
	defer parts.Unlock()
	if at >= uintptr(len(parts.byIndex)) || parts.byIndex[at].kind != k {
		return part{}, false
	}
	return parts.byIndex[at], true
}

// forget invalidates the handle of a destroyed part, even if the next part has its ID and placement.
func forget(p part) {
	parts.Lock()
	defer parts.Unlock()
	if n, ok := parts.index[p]; ok {
		parts.byIndex[n] = part{}
		delete(parts.index, p)
	}
}

// found is a part in a state. Compute is nil for a GPU instance.
type found struct {
	engine.View
	part
	instance       *engine.Instance
	profile        profiles.GPUInstanceProfile
	compute        *engine.Compute
	computeProfile profiles.ComputeInstanceProfile
}

// in finds the part in a state. It returns false if the part does not exist, or another one has its ID.
func (p part) in(s *engine.State, g *engine.GPU) (f found, ok bool) {
	f.part = p
	if f.instance = g.Instance(p.gi); f.instance == nil {
		return f, false
	}
	if f.profile, ok = s.Profile.Board.MIG.Profile(f.instance.ProfileID); !ok {
		return f, false
	}
	if p.kind == gpuInstance {
		return f, gpuInstancePart(p.slot, f.instance) == p
	}
	if f.compute = f.instance.Compute(p.ci); f.compute == nil || f.compute.UUID != p.mark {
		return f, false
	}
	for _, c := range f.profile.ComputeInstances() {
		if c.ID == f.compute.ProfileID {
			f.computeProfile = c
		}
	}
	return f, true
}

// ofPart runs a query of an instance or a MIG device. ok is false if an argument is NULL.
func ofPart(query string, h C.handle, k kind, ok bool, answer func(found) nvml.Code) C.u32 {
	return C.u32(func() (code nvml.Code) {
		defer guard(&code)
		s := current()
		if s == nil {
			return nvml.Uninitialized
		}
		p, known := partOf(h, k)
		if !ok || !known {
			return nvml.InvalidArgument
		}
		v, code := s.Query(query, p.slot)
		if code != 0 {
			return code
		}
		f, there := p.in(v.State, v.GPU)
		if !there {
			return nvml.InvalidArgument
		}
		f.View = v
		return answer(f)
	}())
}

// mutate runs a call that changes a GPU. ok is false if an argument is NULL.
func mutate(query string, dev C.handle, ok bool, change func(slot int, s *engine.State, g *engine.GPU) nvml.Code) C.u32 {
	slot, known := slotOf(dev)
	return mutateSlot(query, slot, ok && known, func(s *engine.State, g *engine.GPU) nvml.Code { return change(slot, s, g) })
}

func mutateSlot(query string, slot int, ok bool, change func(*engine.State, *engine.GPU) nvml.Code) C.u32 {
	return C.u32(func() (code nvml.Code) {
		defer guard(&code)
		s := current()
		if s == nil {
			return nvml.Uninitialized
		}
		if !ok {
			return nvml.InvalidArgument
		}
		return s.Mutate(query, slot, change)
	}())
}

// mutatePart runs a call that changes an instance, or creates one in it.
func mutatePart(query string, h C.handle, k kind, ok bool, change func(f found, s *engine.State, g *engine.GPU) nvml.Code) C.u32 {
	p, known := partOf(h, k)
	return mutateSlot(query, p.slot, ok && known, func(s *engine.State, g *engine.GPU) nvml.Code {
		f, there := p.in(s, g)
		if !there {
			return nvml.InvalidArgument
		}
		return change(f, s, g)
	})
}
