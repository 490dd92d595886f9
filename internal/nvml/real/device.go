// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package real

import (
	"cmp"
	"slices"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
)

// device is a GPU's handle; it is of use while its session is open.
type device struct {
	session *session
	handle  gonvml.Device
}

// asker is what a query goes through: a session, or an instance that may be gone.
type asker interface {
	query(symbol string, call func() gonvml.Return) error
}

// ask runs one query that has one answer.
func ask[T any](through asker, symbol string, call func() (T, gonvml.Return)) (T, error) {
	var v T
	err := through.query(symbol, func() (ret gonvml.Return) {
		v, ret = call()
		return ret
	})
	if err != nil {
		var none T
		return none, err
	}
	return v, nil
}

// list runs one query that has several answers. go-nvml cuts its array at the count that NVML gives, and panics where
// that is beyond the array.
func list[T any](through asker, symbol string, call func() ([]T, gonvml.Return)) ([]T, error) {
	return ask(through, symbol, func() (v []T, ret gonvml.Return) {
		defer func() {
			if recover() != nil {
				v, ret = nil, gonvml.ERROR_UNKNOWN
			}
		}()
		return call()
	})
}

func get[T any](d *device, symbol string, call func() (T, gonvml.Return)) (T, error) {
	return ask(d.session, symbol, call)
}

func (d *device) UUID() (string, error) { return get(d, "nvmlDeviceGetUUID", d.handle.GetUUID) }

func (d *device) Name() (string, error) { return get(d, "nvmlDeviceGetName", d.handle.GetName) }

func (d *device) MinorNumber() (int, error) {
	return get(d, "nvmlDeviceGetMinorNumber", d.handle.GetMinorNumber)
}

func (d *device) Cores() (int, error) {
	return get(d, "nvmlDeviceGetNumGpuCores", d.handle.GetNumGpuCores)
}

func (d *device) PCI() (nvml.PCIInfo, error) {
	p, err := get(d, "nvmlDeviceGetPciInfo_v3", d.handle.GetPciInfo)
	if err != nil {
		return nvml.PCIInfo{}, err
	}
	return nvml.PCIInfo{BusID: text(p.BusId[:]), DeviceID: p.PciDeviceId, SubsystemID: p.PciSubSystemId}, nil
}

func (d *device) Brand() (nvml.Brand, error) {
	b, err := get(d, "nvmlDeviceGetBrand", d.handle.GetBrand)
	return nvml.Brand(b), err
}

func (d *device) Architecture() (nvml.Architecture, error) {
	a, err := get(d, "nvmlDeviceGetArchitecture", d.handle.GetArchitecture)
	return nvml.Architecture(a), err
}

func (d *device) ComputeMode() (nvml.ComputeMode, error) {
	m, err := get(d, "nvmlDeviceGetComputeMode", d.handle.GetComputeMode)
	return nvml.ComputeMode(m), err
}

func (d *device) SetComputeMode(m nvml.ComputeMode) error {
	return d.session.query("nvmlDeviceSetComputeMode", func() gonvml.Return { return d.handle.SetComputeMode(gonvml.ComputeMode(m)) })
}

func (d *device) AddressingMode() (nvml.AddressingMode, error) {
	m, err := get(d, "nvmlDeviceGetAddressingMode", d.handle.GetAddressingMode)
	return nvml.AddressingMode(m.Value), err
}

func (d *device) CUDAComputeCapability() (major, minor int, err error) {
	err = d.session.query("nvmlDeviceGetCudaComputeCapability", func() (ret gonvml.Return) {
		major, minor, ret = d.handle.GetCudaComputeCapability()
		return ret
	})
	return major, minor, err
}

func (d *device) MIGMode() (current, pending bool, err error) {
	err = d.session.query("nvmlDeviceGetMigMode", func() gonvml.Return {
		c, p, ret := d.handle.GetMigMode()
		current, pending = c == gonvml.DEVICE_MIG_ENABLE, p == gonvml.DEVICE_MIG_ENABLE
		return ret
	})
	if err != nil {
		return false, false, err
	}
	return current, pending, nil
}

func (d *device) Memory() (nvml.MemoryInfo, error) {
	m, err := get(d, "nvmlDeviceGetMemoryInfo_v2", d.handle.GetMemoryInfo_v2)
	return nvml.MemoryInfo{Total: m.Total, Reserved: m.Reserved, Free: m.Free, Used: m.Used}, err
}

func (d *device) Processes() ([]nvml.Process, error) {
	compute, err := list(d.session, "nvmlDeviceGetComputeRunningProcesses_v3", d.handle.GetComputeRunningProcesses)
	if err != nil {
		return nil, err
	}
	graphics, err := list(d.session, "nvmlDeviceGetGraphicsRunningProcesses_v3", d.handle.GetGraphicsRunningProcesses)
	if err != nil && !nvml.Unavailable(err) {
		return nil, err
	}
	return merge(append(compute, graphics...)), nil
}

// merge lists each process once for each instance it holds, in order. One that computes and draws is reported twice with
// the same memory.
func merge(infos []gonvml.ProcessInfo) []nvml.Process {
	const notAvailable = ^uint64(0) // NVML_VALUE_NOT_AVAILABLE, seen in containers and under WDDM
	var out []nvml.Process
	for _, i := range infos {
		p := nvml.Process{PID: i.Pid, GPUInstance: instanceID(i.GpuInstanceId), ComputeInstance: instanceID(i.ComputeInstanceId)}
		if i.UsedGpuMemory != notAvailable {
			p.UsedMemory = i.UsedGpuMemory
		}
		out = append(out, p)
	}
	where := func(a, b nvml.Process) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.GPUInstance, b.GPUInstance), cmp.Compare(a.ComputeInstance, b.ComputeInstance))
	}
	slices.SortFunc(out, func(a, b nvml.Process) int {
		return cmp.Or(where(a, b), cmp.Compare(b.UsedMemory, a.UsedMemory))
	})
	return slices.CompactFunc(out, func(a, b nvml.Process) bool { return where(a, b) == 0 })
}

// instanceID is -1 for what NVML reports of the whole GPU.
func instanceID(id uint32) int {
	if id == ^uint32(0) {
		return -1
	}
	return int(id)
}

// text reads a C string from a buffer that may lack its final zero.
func text[T ~int8 | ~uint8](buffer []T) string {
	out := make([]byte, 0, len(buffer))
	for _, c := range buffer {
		if c == 0 {
			break
		}
		out = append(out, byte(c))
	}
	return string(out)
}
