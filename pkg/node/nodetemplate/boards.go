// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"embed"
	"encoding/json"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/node/sharing"
)

// The catalogue is made of the simulator's boards: go test ./pkg/node/nodetemplate -update.
//
//go:embed boards/*.json
var catalogue embed.FS

// board is a Snapshot. Common holds the fields that all GPUs share.
type board struct {
	Driver  gpu.Driver        `json:"driver"`
	Machine string            `json:"machine,omitempty"`
	Common  json.RawMessage   `json:"common"`
	GPUs    []json.RawMessage `json:"gpus"`
}

// Boards lists the catalogue, sorted.
func Boards() []string {
	entries, _ := catalogue.ReadDir("boards") // It is part of the program.
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".json"))
	}
	return names
}

// FromBoard predicts a node with a board of the catalogue, without a settings file.
func FromBoard(name, driver, node string) (Template, error) {
	s, err := load(name)
	if err != nil {
		return Template{}, err
	}
	return predicted(s, driver, node), nil
}

func predicted(s gpu.Snapshot, driver, node string) Template {
	pool, _ := resourceslices.Build(s, nil, resourceslices.Options{
		Node: node, Taints: true, SharedDevices: true, Counters: true,
		Sharing: sharing.Node{MPS: true},
	})
	t := template{node: node, notes: map[string][]string{}, wholes: map[string]bool{}, cut: map[string]bool{}}
	for _, slice := range pool.Slices {
		for i := range slice.Devices {
			t.keep(&slice.Devices[i])
		}
		t.add(resourceapi.ResourceSliceSpec{Driver: driver, Devices: slice.Devices, SharedCounters: slice.SharedCounters})
	}
	out := t.done()
	out.Assumptions = append([]string{
		fmt.Sprintf("the board is as the simulator of this driver has it, with the NVIDIA driver %s", s.Driver.Version),
		"the new node publishes all partitions and groups, as with publish: [], or by default once objects ask for them",
		"there are no settings for sharing, MPS is on, MIG modes change without a reset of the GPU only, and Kubernetes has all features of 1.36",
	}, out.Assumptions...)
	return out
}

func load(name string) (gpu.Snapshot, error) {
	data, err := catalogue.ReadFile("boards/" + name + ".json")
	if err != nil {
		return gpu.Snapshot{}, fmt.Errorf("board %q is not known, use one of %s", name, strings.Join(Boards(), ", "))
	}
	var b board
	if err := json.Unmarshal(data, &b); err != nil {
		return gpu.Snapshot{}, fmt.Errorf("board %s: %w", name, err)
	}
	s := gpu.Snapshot{Driver: b.Driver, Machine: b.Machine}
	for _, own := range b.GPUs {
		var g gpu.GPU
		for _, part := range []json.RawMessage{b.Common, own} {
			if err := json.Unmarshal(part, &g); err != nil {
				return gpu.Snapshot{}, fmt.Errorf("board %s: %w", name, err)
			}
		}
		g.UUID = placeholder(g.PCIAddress)
		s.GPUs = append(s.GPUs, g)
	}
	return s, nil
}
