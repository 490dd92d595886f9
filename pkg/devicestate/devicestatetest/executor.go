// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
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

func (edits) GPU(_ context.Context, d plan.Device) (specs.ContainerEdits, error) {
	node := specs.DeviceNode{Path: fmt.Sprintf("/dev/nvidia%d", d.Minor), Type: "c", Major: 195, Minor: int64(d.Minor)}
	c := specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{&node}}
	if d.Kind == gpu.KindMIG {
		if d.Partition.UUID == "" {
			return c, errors.New("the partition is not known")
		}
		c.Env = []string{"PARTITION=" + d.Partition.UUID}
	}
	return c, nil
}
