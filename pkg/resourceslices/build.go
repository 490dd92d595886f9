// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
)

// Pool is what a node publishes.
type Pool struct {
	Name string
	// Slices are in the order the scheduler is to try them, devices likewise.
	Slices [][]resourceapi.Device
}

// Options say for whom and for what server the slices are.
type Options struct {
	// Node is the node's name.
	Node string
	// Taints and SharedDevices say that the server keeps device taints (DRADeviceTaints) and
	// allowMultipleAllocations (DRAConsumableCapacity).
	Taints, SharedDevices bool
	// Held are the devices that a claim's record names.
	Held []Held
}

// Held is a device that some claim has, with its GPU as it was last known: at least the PCI address.
type Held struct {
	Kind gpu.Kind
	GPU  gpu.GPU
}

// State is the value of the unhealthy taint.
type State string

// Why a GPU is not for new claims.
const (
	// Lost GPUs fell off the bus.
	Lost State = "lost"
	// Unreadable GPUs do not answer a query that they must.
	Unreadable State = "unreadable"
	// Absent GPUs are held by a claim, and the driver does not list them.
	Absent State = "absent"
	// MIGMode is on: the GPU cannot be used whole.
	MIGMode State = "mig-mode"
	// Withheld GPUs may belong to a claim whose record cannot be read.
	Withheld State = "withheld"
)

// Condition says why a GPU must not be given to new claims, though it can be read.
type Condition struct {
	State State
	// Message says what happened and what to do, for people.
	Message string
}

// Warning is something that is not published, or not as it should be.
type Warning struct {
	// Device is the device's name, empty where the GPU has no address.
	Device string
	// State is set where the whole GPU is affected; without it a detail was left out.
	State   State
	Message string
}

// PoolName is the name of a node's pool.
func PoolName(node string) string { return node + "/gpu" }

// Build makes the pool: a slice for each GPU, in order of PCI addresses, its gpu device and then its monitor device.
// Conditions are by PCI address.
func Build(snapshot gpu.Snapshot, conditions map[string]Condition, o Options) (Pool, []Warning) {
	b := builder{driver: snapshot.Driver, o: o}
	for _, c := range b.candidates(snapshot, conditions) {
		if devices := b.devices(c); len(devices) > 0 {
			b.pool.Slices = append(b.pool.Slices, devices)
		}
	}
	b.pool.Name = PoolName(o.Node)
	slices.SortStableFunc(b.warnings, func(x, y Warning) int {
		return cmp.Or(cmp.Compare(x.Device, y.Device), cmp.Compare(x.State, y.State), cmp.Compare(x.Message, y.Message))
	})
	return b.pool, b.warnings
}

type builder struct {
	driver   gpu.Driver
	o        Options
	pool     Pool
	warnings []Warning
}

func (b *builder) warn(device string, state State, format string, args ...any) {
	b.warnings = append(b.warnings, Warning{Device: device, State: state, Message: fmt.Sprintf(format, args...)})
}

// candidate is a GPU with what is wrong with it and which of its devices are held.
type candidate struct {
	gpu  gpu.GPU
	sick Condition
	held map[gpu.Kind]bool
}

// candidates are the GPUs that were read, and those that are not there but held.
func (b *builder) candidates(s gpu.Snapshot, conditions map[string]Condition) []candidate {
	found := map[string]*candidate{}
	for _, g := range s.GPUs {
		name := gpu.Device{Kind: gpu.KindGPU, PCIAddress: g.PCIAddress}.Name()
		if _, err := gpu.ParseName(name); err != nil {
			b.warn("", Unreadable, "GPU %d (%s) is not published: %v", g.Index, g.UUID, err)
			continue
		}
		if other, ok := found[g.PCIAddress]; ok {
			// Which of the two it is cannot be told, so neither is given to anybody.
			other.sick = Condition{State: Unreadable, Message: "two GPUs have this PCI address"}
			if cmp.Or(cmp.Compare(g.UUID, other.gpu.UUID), cmp.Compare(g.Index, other.gpu.Index)) < 0 {
				other.gpu = g
			}
			continue
		}
		c := &candidate{gpu: g, sick: conditions[g.PCIAddress]}
		if c.sick.State == "" && g.MIG.Enabled {
			c.sick = Condition{State: MIGMode, Message: "its MIG mode is on, so that it cannot be used as a whole; turn MIG off to publish it"}
		}
		found[g.PCIAddress] = c
	}
	b.missing(s, found)
	out := make([]candidate, 0, len(found))
	for _, c := range found {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(x, y candidate) int { return cmp.Compare(x.gpu.PCIAddress, y.gpu.PCIAddress) })
	return out
}

// missing adds the held GPUs that were not read, and reports the problems that nobody holds.
func (b *builder) missing(s gpu.Snapshot, found map[string]*candidate) {
	problems := map[string]Condition{}
	for _, p := range s.Problems {
		c := Condition{State: Unreadable, Message: p.Message}
		if p.Lost {
			c.State = Lost
		}
		if p.PCIAddress == "" {
			b.warn("", c.State, "GPU %d is not published: %s", p.Index, p.Message)
			continue
		}
		problems[p.PCIAddress] = c
	}
	for _, h := range sorted(b.o.Held) {
		address := h.GPU.PCIAddress
		if _, err := gpu.ParseName(gpu.Device{Kind: h.Kind, PCIAddress: address}.Name()); err != nil {
			b.warn("", Absent, "a claim holds a device that cannot be named: %v", err)
			continue
		}
		c, ok := found[address]
		if !ok {
			c = &candidate{gpu: h.GPU, sick: Condition{State: Absent, Message: "the driver does not list it"}}
			if p, ok := problems[address]; ok {
				c.sick = p
			}
			found[address] = c
		}
		if c.held == nil {
			c.held = map[gpu.Kind]bool{}
		}
		c.held[h.Kind] = true
	}
	for _, address := range sortedKeys(problems) {
		if _, ok := found[address]; !ok {
			name := gpu.Device{Kind: gpu.KindGPU, PCIAddress: address}.Name()
			b.warn(name, problems[address].State, "GPU at %s is not published: %s", address, problems[address].Message)
		}
	}
}

// sorted puts the fuller description of a GPU first, and makes the order independent of the caller's.
func sorted(held []Held) []Held {
	held = slices.Clone(held)
	slices.SortFunc(held, func(x, y Held) int {
		return cmp.Or(cmp.Compare(x.GPU.PCIAddress, y.GPU.PCIAddress), cmp.Compare(len(y.GPU.ProductName), len(x.GPU.ProductName)),
			cmp.Compare(y.GPU.UUID, x.GPU.UUID), cmp.Compare(x.Kind, y.Kind))
	})
	return held
}
