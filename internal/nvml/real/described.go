// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package real

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Described is an NVML that only repeats what it was told, for a library that wants one where the facts are known. It
// opens nothing. It knows one GPU at the most; any method that such a library has not been seen to need panics.
type Described struct {
	gonvml.Interface
	DriverVersion string
	// UUID, BusID and Minor are the GPU's; without a UUID there is none.
	UUID, BusID string
	Minor       int
}

// Init succeeds.
func (d Described) Init() gonvml.Return { return gonvml.SUCCESS }

// Shutdown succeeds.
func (d Described) Shutdown() gonvml.Return { return gonvml.SUCCESS }

// SystemGetDriverVersion repeats the version.
func (d Described) SystemGetDriverVersion() (string, gonvml.Return) {
	return d.DriverVersion, gonvml.SUCCESS
}

// DeviceGetHandleByUUID finds the one GPU.
func (d Described) DeviceGetHandleByUUID(uuid string) (gonvml.Device, gonvml.Return) {
	if uuid == "" || uuid != d.UUID {
		return nil, gonvml.ERROR_NOT_FOUND
	}
	return describedDevice{Described: d}, gonvml.SUCCESS
}

type describedDevice struct {
	gonvml.Device
	Described Described
}

func (d describedDevice) IsMigDeviceHandle() (bool, gonvml.Return) { return false, gonvml.SUCCESS }

// GetIndex is used for names only, and a caller that knows one GPU needs no other.
func (d describedDevice) GetIndex() (int, gonvml.Return) { return 0, gonvml.SUCCESS }

func (d describedDevice) GetUUID() (string, gonvml.Return) { return d.Described.UUID, gonvml.SUCCESS }

func (d describedDevice) GetMinorNumber() (int, gonvml.Return) {
	return d.Described.Minor, gonvml.SUCCESS
}

func (d describedDevice) GetPciInfo() (gonvml.PciInfo, gonvml.Return) {
	var p gonvml.PciInfo
	for i := 0; i < len(d.Described.BusID) && i < len(p.BusId)-1; i++ {
		p.BusId[i] = int8(d.Described.BusID[i])
	}
	return p, gonvml.SUCCESS
}
