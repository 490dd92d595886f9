// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package native

import gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

// Described is an NVML with given facts, for nvcdi, which calls NVML. It opens no device and has at most one GPU.
// Methods that nvcdi does not call panic.
type Described struct {
	gonvml.Interface
	DriverVersion string
	// UUID, BusID and Minor are the GPU's. An empty UUID means no GPU.
	UUID, BusID string
	Minor       int
}

func (d Described) Init() gonvml.Return     { return gonvml.SUCCESS }
func (d Described) Shutdown() gonvml.Return { return gonvml.SUCCESS }

func (d Described) SystemGetDriverVersion() (string, gonvml.Return) {
	return d.DriverVersion, gonvml.SUCCESS
}

func (d Described) DeviceGetHandleByUUID(uuid string) (gonvml.Device, gonvml.Return) {
	if uuid == "" || uuid != d.UUID {
		return nil, gonvml.ERROR_NOT_FOUND
	}
	return describedDevice{facts: d}, gonvml.SUCCESS
}

type describedDevice struct {
	gonvml.Device
	facts Described
}

func (d describedDevice) IsMigDeviceHandle() (bool, gonvml.Return) { return false, gonvml.SUCCESS }

// GetIndex is used for names only, and there is at most one GPU.
func (d describedDevice) GetIndex() (int, gonvml.Return) { return 0, gonvml.SUCCESS }

func (d describedDevice) GetUUID() (string, gonvml.Return) { return d.facts.UUID, gonvml.SUCCESS }

func (d describedDevice) GetMinorNumber() (int, gonvml.Return) {
	return d.facts.Minor, gonvml.SUCCESS
}

func (d describedDevice) GetPciInfo() (gonvml.PciInfo, gonvml.Return) {
	var p gonvml.PciInfo
	for i := range min(len(d.facts.BusID), len(p.BusId)-1) {
		p.BusId[i] = int8(d.facts.BusID[i])
	}
	return p, gonvml.SUCCESS
}
