// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"cmp"
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

// candidate is a GPU with what is wrong with it and which of its devices are held.
type candidate struct {
	gpu  gpu.GPU
	sick Condition
	// held are the devices that claims have: the whole, its monitor, its partitions.
	whole, monitor bool
	partitions     []Held
	// groups are the names of the held groups that it is in.
	groups []string
}

// name is its whole's.
func (c candidate) name() string {
	return gpu.Device{Kind: gpu.KindGPU, PCIAddress: c.gpu.PCIAddress}.Name()
}

// holds finds a held partition.
func (c candidate) holds(profile string, start int) (Held, bool) {
	i := slices.IndexFunc(c.partitions, func(h Held) bool { return h.Device.Profile == profile && h.Device.Start == start })
	if i < 0 {
		return Held{}, false
	}
	return c.partitions[i], true
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
		found[g.PCIAddress] = &candidate{gpu: g, sick: conditions[g.PCIAddress]}
	}
	b.missing(s, found)
	out := make([]candidate, 0, len(found))
	for _, c := range found {
		out = append(out, *c)
	}
	// Who takes GPUs one by one takes first those that are in no group, then fills group after group.
	rank := map[string]int{}
	for _, i := range b.islands {
		for _, m := range i.Members {
			rank[m] = len(rank) + 1
		}
	}
	slices.SortFunc(out, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(rank[x.gpu.PCIAddress], rank[y.gpu.PCIAddress]), cmp.Compare(x.gpu.PCIAddress, y.gpu.PCIAddress))
	})
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
		address := h.address()
		if _, err := gpu.ParseName(h.Device.Name()); err != nil {
			b.warn("", Absent, "a claim holds a device that cannot be named: %v", err)
			continue
		}
		if _, err := gpu.ParseName(candidate{gpu: gpu.GPU{PCIAddress: address}}.name()); err != nil {
			b.warn(h.Device.Name(), Absent, "a claim holds a group with a GPU that cannot be named: %v", err)
			continue
		}
		c, ok := found[address]
		if !ok {
			h.GPU.PCIAddress = address
			c = &candidate{gpu: h.GPU, sick: Condition{State: Absent, Message: "the driver does not list it"}}
			if p, ok := problems[address]; ok {
				c.sick = p
			}
			found[address] = c
		}
		switch _, known := c.holds(h.Device.Profile, h.Device.Start); {
		case h.Device.Kind == gpu.KindGroup:
			c.groups = append(c.groups, h.Device.Name())
		case h.Device.Kind == gpu.KindGPU:
			c.whole = true
		case h.Device.Kind == gpu.KindMonitor:
			c.monitor = true
		case !known:
			c.partitions = append(c.partitions, h)
		}
	}
	for _, address := range sortedKeys(problems) {
		if _, ok := found[address]; !ok {
			name := gpu.Device{Kind: gpu.KindGPU, PCIAddress: address}.Name()
			b.warn(name, problems[address].State, "GPU at %s is not published: %s", address, problems[address].Message)
		}
	}
}

// address is the held GPU's.
func (h Held) address() string {
	if h.Device.Kind == gpu.KindGroup {
		return h.GPU.PCIAddress
	}
	return h.Device.PCIAddress
}

// sorted puts the fuller description of a GPU first, and makes the order independent of the caller's.
func sorted(held []Held) []Held {
	held = slices.Clone(held)
	slices.SortFunc(held, func(x, y Held) int {
		return cmp.Or(cmp.Compare(x.address(), y.address()), cmp.Compare(len(y.GPU.ProductName), len(x.GPU.ProductName)),
			cmp.Compare(y.GPU.UUID, x.GPU.UUID), cmp.Compare(x.Device.Name(), y.Device.Name()),
			cmp.Compare(y.Size, x.Size), cmp.Compare(y.MemoryBytes, x.MemoryBytes))
	})
	return held
}
