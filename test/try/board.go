// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/nodelabels"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/profiles"
)

const (
	driver   = slicetest.Driver
	nodeName = "node-1"
)

// board is a simulated node with all that it publishes, before any claim.
type board struct {
	profile profiles.Profile
	machine *engine.Engine
	// scanning is held by the one scan that the scanner allows at a time; GPUs are prepared concurrently.
	scanning sync.Mutex
	scanner  *inventory.Inventory
	snapshot gpu.Snapshot
	sharing  sharing.Node
	slices   []*resourceapi.ResourceSlice
	classes  map[string]*resourceapi.DeviceClass
	labels   map[string]string
	compiled *cel.Cache
}

// newBoard simulates a board and publishes its devices by the driver's own code. settings is a file with the chart
// values sharing and publish, or empty.
func newBoard(ctx context.Context, tree, profile, settings string) (*board, error) {
	b := &board{compiled: cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})}
	var err error
	if b.profile, err = profiles.Load(profile); err != nil {
		return nil, err
	}
	state, err := engine.New(b.profile, "", 0)
	if err != nil {
		return nil, err
	}
	if b.machine, err = engine.InMemory(state); err != nil {
		return nil, err
	}
	none := filepath.Join(os.TempDir(), "no-such-directory")
	b.scanner = inventory.New(inventory.Options{Library: nvmlfake.New(b.machine), ProcRoot: none, SysRoot: none, DevRoot: none})
	if b.snapshot, err = b.scan(ctx); err != nil {
		return nil, err
	}
	parsed, err := readSettings(settings)
	if err != nil {
		return nil, err
	}
	b.sharing = sharing.Node{Name: nodeName, Settings: parsed, MPS: true}
	b.slices = slicetest.Slices(b.snapshot, nodeName, parsed)
	p := b.pool()
	b.labels = nodelabels.Of(p, driver)
	return b, b.makeClasses(tree, p)
}

func (b *board) scan(ctx context.Context) (gpu.Snapshot, error) {
	b.scanning.Lock()
	s, err := b.scanner.Scan(ctx)
	b.scanning.Unlock()
	slicetest.Locate(b.profile, &s)
	return s, err
}

// readSettings reads the node settings of a file of chart values.
func readSettings(path string) (sharing.Settings, error) {
	if path == "" {
		return sharing.Settings{}, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return sharing.Settings{}, err
	}
	var values struct {
		Sharing struct {
			Config map[string]any `json:"config"`
		} `json:"sharing"`
		Publish []any `json:"publish"`
	}
	if err := yaml.Unmarshal(data, &values); err != nil {
		return sharing.Settings{}, fmt.Errorf("%s: %w", path, err)
	}
	if values.Publish != nil {
		if values.Sharing.Config == nil {
			values.Sharing.Config = map[string]any{}
		}
		values.Sharing.Config["publish"] = values.Publish
	}
	config, err := yaml.Marshal(values.Sharing.Config)
	if err != nil {
		return sharing.Settings{}, fmt.Errorf("%s: %w", path, err)
	}
	parsed, _, err := sharing.Parse(config)
	return parsed, err
}

// pool is the published pool as the controller reads it.
func (b *board) pool() pool.Pool {
	var shapes pool.Shapes
	var all []*pool.Slice
	for _, s := range b.slices {
		one := shapes.Trim(s.DeepCopy())
		all = append(all, &one)
	}
	return pool.Of(all)
}

// makeClasses collects the classes of the chart and those that the controller makes for the board.
func (b *board) makeClasses(tree string, p pool.Pool) error {
	b.classes = map[string]*resourceapi.DeviceClass{}
	path := filepath.Join(tree, "deployments", "helm", "testdata", "golden", "default.yaml")
	chart, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for text := range strings.SplitSeq(string(chart), "\n---\n") {
		var class resourceapi.DeviceClass
		if !strings.Contains(text, "\nkind: DeviceClass\n") {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(text), &class); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		b.classes[class.Name] = &class
	}
	kinds := map[pool.Kind]int{}
	for _, kind := range p.Devices() {
		kinds[kind]++
	}
	made, problems := deviceclasses.Build(kinds, nil, deviceclasses.Options{
		Driver: driver, Models: true, Profiles: true, Groups: true, ResourcePrefix: "nvidia.com/mig-",
	})
	if len(problems) > 0 {
		return problems[0]
	}
	for _, class := range made {
		b.classes[class.Name] = class.DeviceClass
	}
	return nil
}

// devices lists the published devices in the scheduler's order.
func (b *board) devices() []resourceapi.Device {
	var out []resourceapi.Device
	for _, s := range b.slices {
		out = append(out, s.Spec.Devices...)
	}
	return out
}

// describe is the board in two lines.
func (b *board) describe(profile string) string {
	models := map[string]int{}
	var order []string
	for _, g := range b.snapshot.GPUs {
		if models[g.ProductName]++; models[g.ProductName] == 1 {
			order = append(order, g.ProductName)
		}
	}
	for i, name := range order {
		order[i] = fmt.Sprintf("%d × %s", models[name], name)
	}
	return fmt.Sprintf("Board %s: %s, driver %s\nIt publishes %d devices in %d slices.",
		profile, strings.Join(order, ", "), b.snapshot.Driver.Version, len(b.devices()), len(b.slices))
}
