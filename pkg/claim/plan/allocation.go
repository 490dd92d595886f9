// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// Allocation is the part of the scheduler's allocation that plans depend on. Equal allocations have equal values,
// whether the API server sent JSON or protobuf. Records contain it, also those of earlier releases, which lack later
// fields.
type Allocation struct {
	Results []Result `json:"results,omitempty"`
	// Their order is the allocation's, because the last one for a device applies.
	Configs []Config `json:"configs,omitempty"`
}

// Result is a device of the allocation.
type Result struct {
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	Admin   bool   `json:"admin,omitempty"`
	ShareID string `json:"shareID,omitempty"`
	// Memory, in bytes, and Compute, in percent, are the consumed capacities.
	Memory  int64 `json:"memory,omitempty"`
	Compute int64 `json:"compute,omitempty"`
}

// Config are parameters for this driver.
type Config struct {
	Source resourceapi.AllocationConfigSource `json:"source"`
	// Requests are the names of the requests that have the parameters, sorted. Without names all have them.
	Requests []string `json:"requests,omitempty"`
	// Parameters are JSON with sorted keys and without spaces.
	Parameters json.RawMessage `json:"parameters"`
}

// SameAllocation reports whether two plans are of the same allocation. Plans of earlier releases have only a digest.
func (p Plan) SameAllocation(o Plan) bool {
	a, b := p.Allocation, o.Allocation
	if len(a.Results) == 0 || len(b.Results) == 0 {
		return p.Digest == o.Digest
	}
	return slices.Equal(a.Results, b.Results) && slices.EqualFunc(a.Configs, b.Configs, func(c, d Config) bool {
		return c.Source == d.Source && slices.Equal(c.Requests, d.Requests) && bytes.Equal(c.Parameters, d.Parameters)
	})
}

func allocationOf(devices resourceapi.DeviceAllocationResult, driver string) (a Allocation) {
	for _, r := range devices.Results {
		if r.Driver != driver {
			continue
		}
		one := Result{Request: r.Request, Pool: r.Pool, Device: r.Device, Admin: r.AdminAccess != nil && *r.AdminAccess}
		if r.ShareID != nil {
			one.ShareID = string(*r.ShareID)
		}
		memory, compute := r.ConsumedCapacity[memoryCapacity], r.ConsumedCapacity[computeCapacity]
		one.Memory, one.Compute = memory.Value(), compute.Value()
		a.Results = append(a.Results, one)
	}
	slices.SortFunc(a.Results, func(r, o Result) int {
		return cmp.Or(cmp.Compare(r.Request, o.Request), cmp.Compare(r.Device, o.Device),
			cmp.Compare(r.ShareID, o.ShareID))
	})
	for _, c := range devices.Config {
		if c.Opaque != nil && c.Opaque.Driver == driver {
			a.Configs = append(a.Configs,
				Config{c.Source, slices.Sorted(slices.Values(c.Requests)), canonical(c.Opaque.Parameters.Raw)})
		}
	}
	return a
}

// canonical returns JSON that is the same for texts of the same value. Another text becomes a string.
func canonical(text []byte) json.RawMessage {
	var value any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		value = string(text)
	}
	out, _ := json.Marshal(value) // Decoded values and strings always encode.
	return out
}

// digest identifies an allocation for releases before Allocation. They compare it with their own, and would release a
// running pod's devices if it differed. It must never change.
func digest(devices resourceapi.DeviceAllocationResult, driver string) string {
	type result struct {
		Request, Pool, Device string
		Admin                 bool
		Share                 string
		Consumed              map[resourceapi.QualifiedName]string
	}
	type config struct {
		Source     resourceapi.AllocationConfigSource
		Requests   []string
		Parameters []byte
	}
	var ours struct {
		Results []result
		Configs []config
	}
	for _, r := range devices.Results {
		if r.Driver != driver {
			continue
		}
		one := result{Request: r.Request, Pool: r.Pool, Device: r.Device, Admin: r.AdminAccess != nil && *r.AdminAccess}
		if r.ShareID != nil {
			one.Share = string(*r.ShareID)
		}
		for name, quantity := range r.ConsumedCapacity {
			if one.Consumed == nil {
				one.Consumed = map[resourceapi.QualifiedName]string{}
			}
			one.Consumed[name] = quantity.String()
		}
		ours.Results = append(ours.Results, one)
	}
	for _, c := range devices.Config {
		if c.Opaque != nil && c.Opaque.Driver == driver {
			ours.Configs = append(ours.Configs, config{c.Source, c.Requests, c.Opaque.Parameters.Raw})
		}
	}
	data, _ := json.Marshal(ours) // Strings, booleans and bytes always encode.
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
