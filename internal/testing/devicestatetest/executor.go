// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
)

// fileExecutor makes a file for each step.
type fileExecutor struct {
	host *host.Host
	dir  string
}

func fileOf(step plan.Step) string {
	var name string
	_ = json.Unmarshal(step.Spec, &name)
	return name
}

func (x fileExecutor) path(w plan.Work) string { return filepath.Join(x.dir, fileOf(w.Step)) }

func (fileExecutor) Admit(context.Context, plan.Work) error { return nil }

func (x fileExecutor) Check(_ context.Context, w plan.Work) error {
	_, err := x.host.ReadFile(x.path(w))
	return err
}

func (x fileExecutor) Apply(_ context.Context, w plan.Work) error {
	if _, err := x.host.ReadFile(x.path(w)); err == nil {
		return nil
	}
	return x.host.WriteDurable("test.apply", x.path(w), []byte("step"), 0o600)
}

func (x fileExecutor) Revert(_ context.Context, w plan.Work) error {
	return errors.Join(x.host.Remove("test.revert", x.path(w)), x.host.RemoveUnfinished("test.revert", x.path(w)))
}

type edits struct{ e *Env }

func (e edits) Common(context.Context) (specs.ContainerEdits, error) {
	return specs.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}, e.e.EditsErr
}

// Install implements devicestate.Edits.
func (e edits) Install(context.Context) error { return e.e.InstallErr }

// GPU describes a device with the numbers that the kernel has for it now.
func (e edits) GPU(_ context.Context, d plan.Device) (specs.ContainerEdits, error) {
	minor, partitions, err := e.e.kernel(d)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	node := specs.DeviceNode{Path: fmt.Sprintf("/dev/nvidia%d", minor), Type: "c", Major: 195, Minor: int64(minor)}
	c := specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{&node}}
	if d.Kind == gpu.KindMIG && !d.Admin {
		if d.Partition.UUID == "" {
			return c, errors.New("the partition is not known")
		}
		if !partitions[d.Partition.GPUInstance] {
			return c, fmt.Errorf("the kernel has no GPU instance %d of %s", d.Partition.GPUInstance, d.PCIAddress)
		}
		n := int64(engine.InstanceMinor(minor, d.Partition.GPUInstance))
		c.DeviceNodes = append(c.DeviceNodes, &specs.DeviceNode{
			Path: fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n), Type: "c", Major: 237, Minor: n,
		})
		c.Env = []string{"PARTITION=" + d.Partition.UUID}
	}
	return c, nil
}

// kernel returns a GPU's minor number and its GPU instances, as the kernel has them now. Without simulator it has all
// GPUs: those outside of the Snapshot cannot be read by scans.
func (e *Env) kernel(d plan.Device) (minor int, instances map[int]bool, err error) {
	if e.Sim == nil {
		if g, ok := e.Snapshot.ByAddress(d.PCIAddress); ok {
			return g.Minor, nil, nil
		}
		return d.Minor, nil, nil
	}
	now := e.Sim.State()
	for _, g := range now.GPUs {
		if g.Address == d.PCIAddress && now.DriverLoaded && !g.OffBus {
			instances = map[int]bool{}
			for _, i := range g.Instances {
				instances[i.ID] = len(i.Computes) > 0
			}
			return g.Minor, instances, nil
		}
	}
	return 0, nil, fmt.Errorf("the kernel has no GPU at %s", d.PCIAddress)
}

// numbers implements devicestate.Options.Kernel.
func (e *Env) numbers() string {
	if e.Sim == nil {
		return ""
	}
	now := e.Sim.State()
	var b strings.Builder
	fmt.Fprint(&b, now.DriverLoaded)
	for _, g := range now.GPUs {
		fmt.Fprint(&b, " ", g.OffBus, " ", g.Minor)
	}
	return b.String()
}
