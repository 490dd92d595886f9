// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// exclusivePartition reports whether a claim's device is a partition of this driver that only the daemon may reach. The
// mode ends with the partition, so nothing restores it. An external partition keeps its mode, because it stays.
func (x *Executor) exclusivePartition(d plan.Device) bool {
	return !x.KeepMode && d.Kind == gpu.KindMIG && uses(d) && !d.Partition.External && d.Partition.UUID != ""
}

// setPartitionExclusive sets the compute mode of a partition, which drivers have since CUDA 13.3. Elsewhere the limits
// hold for processes that use the daemon.
func (x *Executor) setPartitionExclusive(d plan.Device) error {
	return x.sessions.With(d.PCIAddress, d.UUID, func(g *sessionpool.GPU) error {
		p := partition{g, d.Partition.UUID}
		mode, err := twice(p.ComputeMode)
		switch {
		case modeless(err), err == nil && mode == nvml.ComputeExclusiveProcess:
			return nil
		case err != nil:
			return fmt.Errorf("read the compute mode of %s: %w", d.Name, err)
		}
		_, err = twice(func() (any, error) { return nil, set(p, nvml.ComputeExclusiveProcess) })
		if modeless(err) {
			return nil
		}
		return err
	})
}

// modeless reports the answers of drivers whose MIG devices have no compute mode.
func modeless(err error) bool { return nvml.Unavailable(err) || errors.Is(err, nvml.InvalidArgument) }

// partition is a MIG device.
type partition struct {
	gpu  nvml.Device
	uuid string
}

func (p partition) ComputeMode() (nvml.ComputeMode, error) { return p.gpu.MIGComputeMode(p.uuid) }

func (p partition) SetComputeMode(m nvml.ComputeMode) error {
	return p.gpu.SetMIGComputeMode(p.uuid, m)
}
