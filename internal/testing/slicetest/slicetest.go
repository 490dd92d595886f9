// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package slicetest returns the ResourceSlices of simulated nodes, for tests with many nodes or without a running one.
package slicetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/profiles"
)

// Driver is the driver's name in the slices.
const Driver = "gpu.nvidia.com"

// Node returns the slices of a node with so many GPUs of a profile (0: all of them), in the scheduler's order.
func Node(profile, node string, gpus int) ([]*resourceapi.ResourceSlice, error) {
	snapshot, err := Scan(profile, node, gpus)
	if err != nil {
		return nil, fmt.Errorf("scan the simulated node %s (%s): %w", node, profile, err)
	}
	return Slices(snapshot, node, sharing.Settings{}), nil
}

// Slices returns the slices of a node with MPS for a Snapshot and the node's settings. No object asks for a MIG
// profile or a group. All partitions are an administrator's.
func Slices(
	snapshot gpu.Snapshot, node string, settings sharing.Settings, change ...func(*resourceslices.Options),
) []*resourceapi.ResourceSlice {
	external := map[string][]gpu.Partition{}
	for _, g := range snapshot.GPUs {
		external[g.PCIAddress] = g.MIG.Partitions
	}
	o := resourceslices.Options{
		Node: node, Taints: true, SharedDevices: true, Counters: true, External: external,
		Sharing: sharing.Node{Name: node, Settings: settings, MPS: true, Demand: sharingtest.NoDemand{}},
	}
	for _, c := range change {
		c(&o)
	}
	pool, _ := resourceslices.Build(snapshot, nil, o)
	var out []*resourceapi.ResourceSlice
	count := map[string]int64{}
	for _, s := range pool.Slices {
		count[wire.PoolOf(node, s.Devices)]++
	}
	for i, s := range pool.Slices {
		name := wire.PoolOf(node, s.Devices)
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%02d", node, Driver, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: Driver, NodeName: &node, Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: count[name]},
			},
		})
	}
	return out
}

// Scan returns the Snapshot of a simulated node with so many GPUs of a profile (0: all of them). Seeds differ in UUIDs.
func Scan(profile, seed string, gpus int) (gpu.Snapshot, error) {
	dir, err := os.MkdirTemp("", "publish-")
	if err != nil {
		return gpu.Snapshot{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	p, err := profiles.Load(profile)
	if err != nil {
		return gpu.Snapshot{}, err
	}
	state, err := engine.New(p, seed, gpus)
	if err != nil {
		return gpu.Snapshot{}, err
	}
	machine := engine.Open(dir, nil)
	if err := machine.Create(state); err != nil {
		return gpu.Snapshot{}, err
	}
	none := filepath.Join(dir, "none")
	s, err := inventory.New(inventory.Options{
		Library:  nvmlfake.New(machine),
		ProcRoot: none,
		SysRoot:  none,
		DevRoot:  none,
	}).Scan(context.Background())
	Locate(p, &s)
	return s, err
}

// Locate sets the PCIe roots and NUMA nodes of a Snapshot that was scanned without a sysfs.
func Locate(p profiles.Profile, s *gpu.Snapshot) {
	for n := range s.GPUs {
		for _, slot := range p.Slots {
			if slot.Address == s.GPUs[n].PCIAddress {
				s.GPUs[n].PCIeRoot = slot.Path[0]
				if slot.NUMANode >= 0 {
					s.GPUs[n].NUMANode = &slot.NUMANode
				}
			}
		}
	}
}
