// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command allocate runs the scheduler's allocator over ResourceSlices and claims. The test builds it once for each patch of
// k8s.io/dynamic-resource-allocation, because a process can link only one version of a module. So it uses only what
// all of them have, and has no other packages of this project.
//
//	allocate < input.json > output.json
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// input has the same JSON as the test's.
type input struct {
	Node      string
	Slices    map[string][]*resourceapi.ResourceSlice
	Classes   []*resourceapi.DeviceClass
	Scenarios []scenario
}

type scenario struct {
	// Shares and Counters say whether the scheduler's DRAConsumableCapacity and DRAPartitionableDevices are on.
	Shares, Counters bool
	Steps            []step
}

// step allocates claims together, as for one pod, or releases claims by name.
type step struct {
	// Slices names the slices that the scheduler sees from this step on; empty: those of the last step.
	Slices   string
	Allocate []*resourceapi.ResourceClaim
	Release  []string
}

// result has the devices of each claim; none if the claims cannot be allocated.
type result struct {
	Devices [][]resourceapi.DeviceRequestAllocationResult
	Error   string
	Panic   string
}

// limit is the time of the scheduler for one node (DRASchedulerFilterTimeout).
const limit = 10 * time.Second

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		return fmt.Errorf("decode the input: %w", err)
	}
	var out [][]result
	for _, s := range in.Scenarios {
		c := cluster{input: in, scenario: s, claims: map[string][]resourceapi.DeviceRequestAllocationResult{}}
		var results []result
		for _, step := range s.Steps {
			results = append(results, c.step(step))
		}
		out = append(out, results)
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// cluster holds the objects that the scheduler knows.
type cluster struct {
	input
	scenario scenario
	slices   string
	claims   map[string][]resourceapi.DeviceRequestAllocationResult
}

func (c *cluster) step(s step) (out result) {
	// The scheduler would crash.
	defer func() {
		if p := recover(); p != nil {
			out = result{Panic: fmt.Sprint(p)}
		}
	}()
	if s.Slices != "" {
		c.slices = s.Slices
	}
	for _, name := range s.Release {
		delete(c.claims, name)
	}
	if len(s.Allocate) == 0 {
		return out
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	allocator, err := structured.NewAllocator(ctx, structured.Features{
		AdminAccess: true, PrioritizedList: true, DeviceTaints: true,
		ConsumableCapacity: c.scenario.Shares, PartitionableDevices: c.scenario.Counters,
	}, c.allocated(), c, c.Slices[c.slices], cel.NewCache(100, cel.Features{EnableConsumableCapacity: c.scenario.Shares}))
	if err != nil {
		return result{Error: err.Error()}
	}
	results, err := allocator.Allocate(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.Node}}, s.Allocate)
	if err != nil {
		out.Error = err.Error()
	}
	for i, r := range results {
		c.claims[s.Allocate[i].Name] = r.Devices.Results
		out.Devices = append(out.Devices, r.Devices.Results)
	}
	return out
}

// allocated is the scheduler's summary of the allocated claims.
func (c *cluster) allocated() structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for _, results := range c.claims {
		for _, r := range results {
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			switch {
			case r.AdminAccess != nil && *r.AdminAccess:
			case r.ShareID != nil && c.scenario.Shares:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
			default:
				state.AllocatedDevices.Insert(id)
			}
		}
	}
	return state
}

func (c *cluster) List() ([]*resourceapi.DeviceClass, error) { return c.Classes, nil }

func (c *cluster) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c.Classes {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, errors.New("no such class: " + name)
}
