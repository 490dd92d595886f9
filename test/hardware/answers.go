// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"encoding/hex"
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// answers returns NVML's answers to queries of which the driver uses the code: a value, or the text of the code. A
// recording and the simulator are compared by them.
func answers(lib gonvml.Interface, d gonvml.Device) map[string]any {
	all := map[string]any{}
	code := func(name string, value any, ret gonvml.Return) {
		all[name] = value
		if ret != gonvml.SUCCESS {
			all[name] = fmt.Sprintf("code %d, %v", int(ret), ret)
		}
	}
	for _, address := range []string{"0000:fe:1f.7", "0000:fe:1f.0", "0000:00:07.0", "0000:00:00.0", "00000000:00:06.0", "nonsense", ""} {
		_, ret := lib.DeviceGetHandleByPciBusId(address)
		code("handle.address "+address, "found", ret)
	}
	for _, uuid := range []string{"GPU-00000000-0000-0000-0000-000000000000", "MIG-00000000-0000-0000-0000-000000000000", "nonsense"} {
		_, ret := lib.DeviceGetHandleByUUID(uuid)
		code("handle.uuid "+uuid, "found", ret)
	}
	_, ret := lib.DeviceGetHandleByIndex(99)
	code("handle.index 99", "found", ret)
	persistence, ret := d.GetPersistenceMode()
	code("persistence", persistence, ret)
	virtual, ret := d.GetVirtualizationMode()
	code("virtualization", virtual, ret)
	hostMode, ret := d.GetHostVgpuMode()
	code("host-vgpu-mode", hostMode, ret)
	fabric, ret := d.GetGpuFabricInfo()
	code("fabric", fmt.Sprintf("%+v", fabric), ret)
	fabricV, ret := d.GetGpuFabricInfoV().V2()
	code("fabric.v2", fmt.Sprintf("%+v", fabricV), ret)
	for link := range 18 {
		state, ret := d.GetNvLinkState(link)
		code(fmt.Sprintf("nvlink.%d", link), state, ret)
	}
	gpm, ret := d.GpmQueryDeviceSupport()
	code("gpm", gpm.IsSupportedDevice, ret)
	mode, ret := d.GetComputeMode()
	code("compute-mode", mode, ret)
	active, ret := d.GetDisplayActive()
	code("display-active", active, ret)
	display, ret := d.GetDisplayMode()
	code("display-mode", display, ret)
	current, pending, ret := d.GetMigMode()
	code("mig-mode", []int{current, pending}, ret)
	count, ret := d.GetMaxMigDeviceCount()
	code("max-mig-devices", count, ret)
	for i := range 3 {
		_, ret := d.GetMigDeviceHandleByIndex(i)
		code(fmt.Sprintf("mig-handle.%d", i), "found", ret)
	}
	_, ret = d.GetGpuInstanceById(1)
	code("gpu-instance.1", "found", ret)
	info, ret := d.GetGpuInstanceProfileInfo(gonvml.GPU_INSTANCE_PROFILE_7_SLICE)
	code("profile.7", fmt.Sprintf("%+v", info), ret)
	if ret == gonvml.SUCCESS {
		instances, ret := d.GetGpuInstances(&info)
		code("gpu-instances.7", len(instances), ret)
		remaining, ret := d.GetGpuInstanceRemainingCapacity(&info)
		code("remaining.7", remaining, ret)
		places, ret := d.GetGpuInstancePossiblePlacements(&info)
		code("placements.7", fmt.Sprintf("%+v", places), ret)
	}
	attributes, ret := d.GetAttributes()
	code("attributes", fmt.Sprintf("%+v", attributes), ret)
	addressing, ret := d.GetAddressingMode()
	code("addressing", addressing.Value, ret)
	memory, ret := d.GetMemoryInfo_v2()
	code("memory", fmt.Sprintf("%+v", memory), ret)
	memory1, ret := d.GetMemoryInfo()
	code("memory.v1", fmt.Sprintf("%+v", memory1), ret)
	serial, ret := d.GetSerial()
	code("serial.length", len(serial), ret)
	module, ret := d.GetModuleId()
	code("module", module, ret)
	retired, ret := d.GetRetiredPagesPendingStatus()
	code("retired-pending", retired, ret)
	correctable, uncorrectable, isPending, failure, ret := d.GetRemappedRows()
	code("remapped", fmt.Sprint(correctable, uncorrectable, isPending, failure), ret)
	sram, ret := d.GetSramEccErrorStatus()
	code("sram", fmt.Sprintf("%+v", sram), ret)
	unrepairable, ret := d.GetUnrepairableMemoryFlag_v1()
	code("unrepairable", unrepairable.BUnrepairableMemory, ret)
	reasons, ret := d.GetCurrentClocksEventReasons()
	code("clocks-event-reasons", reasons, ret)
	types, ret := d.GetSupportedEventTypes()
	code("event-types", fmt.Sprintf("%#x", types), ret)
	compute, ret := d.GetComputeRunningProcesses()
	code("compute-processes", fmt.Sprintf("%+v", compute), ret)
	samples, ret := d.GetProcessUtilization(0)
	code("process-utilization", len(samples), ret)
	// Every field there is, because the codes differ by field.
	for id := uint32(1); id < 300; id++ {
		f := []gonvml.FieldValue{{FieldId: id}}
		if ret := d.GetFieldValues(f); ret != gonvml.SUCCESS {
			code(fmt.Sprintf("field.%d", id), nil, ret)
			continue
		}
		if ret := gonvml.Return(f[0].NvmlReturn); ret != gonvml.SUCCESS {
			code(fmt.Sprintf("field.%d", id), nil, ret)
			continue
		}
		code(fmt.Sprintf("field.%d", id), fmt.Sprintf("type %d, %s", f[0].ValueType, hex.EncodeToString(f[0].Value[:])), gonvml.SUCCESS)
	}
	return all
}
