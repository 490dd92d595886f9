// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"embed"
	"encoding/json"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
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

// Template is a prediction.
type Template struct {
	Slices []resourceapi.ResourceSlice
	// Assumptions are sentences for people. The prediction is wrong where one does not hold.
	Assumptions []string
}

// FromBoard predicts a node with a board of the catalogue, without a settings file.
func FromBoard(name, driver, node string) (Template, error) {
	s, err := load(name)
	if err != nil {
		return Template{}, err
	}
	pool, _ := resourceslices.Build(s, nil, resourceslices.Options{
		Node: node, Taints: true, SharedDevices: true, Counters: true,
		Sharing: sharing.Node{MPS: true},
	})
	out := Template{Assumptions: []string{
		"the board is as the simulator of this driver has it, with the NVIDIA driver " + s.Driver.Version,
		"the new node publishes all partitions and groups, as with publish: [], or by default once objects ask " +
			"for them",
		"there are no settings for sharing, MPS is on, MIG modes change without a reset of the GPU only, and " +
			"Kubernetes has all features of 1.36",
		"UUIDs are placeholders made of PCI addresses",
	}}
	count := map[string]int64{}
	for i, slice := range pool.Slices {
		name := wire.PoolOf(node, slice.Devices)
		count[name]++
		out.Slices = append(out.Slices, resourceapi.ResourceSlice{
			TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%02d", node, driver, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: name, Generation: 1},
				Devices: slice.Devices, SharedCounters: slice.SharedCounters,
			},
		})
	}
	for i := range out.Slices {
		pool := &out.Slices[i].Spec.Pool
		pool.ResourceSliceCount = count[pool.Name]
	}
	return out, nil
}

// placeholder is a UUID for the GPU in a slot.
func placeholder(address string) string {
	digits := strings.NewReplacer(":", "", ".", "").Replace(address)
	return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012s", digits)
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
