// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync/atomic"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
)

// device is a GPU's handle. It is valid until its session is closed.
type device struct {
	session *session
	handle  gonvml.Device
	// profiles are the GPU's MIG profiles once GPUInstances has listed them: they stay for the life of the handle.
	profiles atomic.Pointer[[]nvml.GPUInstanceProfile]
}

func (d *device) UUID() (string, error) { return get(d.session, "nvmlDeviceGetUUID", d.handle.GetUUID) }

func (d *device) Name() (string, error) { return get(d.session, "nvmlDeviceGetName", d.handle.GetName) }

func (d *device) MinorNumber() (int, error) {
	return get(d.session, "nvmlDeviceGetMinorNumber", d.handle.GetMinorNumber)
}

func (d *device) Cores() (int, error) {
	return get(d.session, "nvmlDeviceGetNumGpuCores", d.handle.GetNumGpuCores)
}

func (d *device) PCI() (nvml.PCIInfo, error) {
	p, err := get(d.session, "nvmlDeviceGetPciInfo_v3", d.handle.GetPciInfo)
	return nvml.PCIInfo{BusID: text(p.BusId[:]), DeviceID: p.PciDeviceId, SubsystemID: p.PciSubSystemId}, err
}

func (d *device) Brand() (nvml.Brand, error) {
	return number[nvml.Brand](d.session, "nvmlDeviceGetBrand", d.handle.GetBrand)
}

func (d *device) Architecture() (nvml.Architecture, error) {
	return number[nvml.Architecture](d.session, "nvmlDeviceGetArchitecture", d.handle.GetArchitecture)
}

func (d *device) VirtualizationMode() (nvml.VirtualizationMode, error) {
	return number[nvml.VirtualizationMode](d.session, "nvmlDeviceGetVirtualizationMode", d.handle.GetVirtualizationMode)
}

func (d *device) ComputeMode() (nvml.ComputeMode, error) {
	return number[nvml.ComputeMode](d.session, "nvmlDeviceGetComputeMode", d.handle.GetComputeMode)
}

func (d *device) SetComputeMode(m nvml.ComputeMode) error {
	return d.session.query("nvmlDeviceSetComputeMode", func() gonvml.Return {
		return d.handle.SetComputeMode(gonvml.ComputeMode(m))
	})
}

func (d *device) MemoryLimit(cgroup string) (uint64, error) {
	l, err := get(d.session, "nvmlDeviceGetMemoryLimits_v1", func() (gonvml.MemoryLimits_v1, gonvml.Return) {
		l, ret := d.handle.GetMemoryLimits_v1(cgroup)
		if ret == gonvml.SUCCESS && l.HardLimit == gonvml.DEVICE_MEMORY_LIMIT_MAX {
			ret = gonvml.ERROR_NOT_FOUND // the header has both answers for a cgroup without a limit
		}
		return l, ret
	})
	return l.HardLimit, err
}

func (d *device) SetMemoryLimit(cgroup string, bytes uint64) error {
	return d.session.query("nvmlDeviceSetMemoryLimits_v1", func() gonvml.Return {
		return d.handle.SetMemoryLimits_v1(cgroup, 0, bytes)
	})
}

func (d *device) AddressingMode() (nvml.AddressingMode, error) {
	m, err := get(d.session, "nvmlDeviceGetAddressingMode", d.handle.GetAddressingMode)
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
		now, next, ret := d.handle.GetMigMode()
		current, pending = now == gonvml.DEVICE_MIG_ENABLE, next == gonvml.DEVICE_MIG_ENABLE
		return ret
	})
	return current, pending, err
}

func (d *device) Memory() (nvml.MemoryInfo, error) {
	m, err := get(d.session, "nvmlDeviceGetMemoryInfo_v2", d.handle.GetMemoryInfo_v2)
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

// merge lists each process once for each instance it uses, in order. NVML reports a process with compute and graphics
// contexts twice.
func merge(infos []gonvml.ProcessInfo) []nvml.Process {
	var out []nvml.Process
	for _, i := range infos {
		// NVML's ID of the whole GPU has all bits set, as -1 has.
		out = append(out, nvml.Process{PID: i.Pid, GPUInstance: int(int32(i.GpuInstanceId)),
			ComputeInstance: int(int32(i.ComputeInstanceId))})
	}
	slices.SortFunc(out, compare)
	return slices.Compact(out)
}

func compare(a, b nvml.Process) int {
	return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.GPUInstance, b.GPUInstance),
		cmp.Compare(a.ComputeInstance, b.ComputeInstance))
}

// text reads a C string from a buffer that may lack its final zero.
func text(buffer []int8) string {
	var out strings.Builder
	for _, c := range buffer {
		if c == 0 {
			break
		}
		out.WriteByte(byte(c))
	}
	return out.String()
}

// maxNVLinks is the largest number of links that NVML reports (NVML_NVLINK_MAX_LINKS).
const maxNVLinks = 36

// NVLinks queries each link: a GPU has fewer links than NVML's maximum, and returns InvalidArgument for the first
// missing one.
func (d *device) NVLinks() ([]nvml.NVLink, error) {
	var out []nvml.NVLink
	uuid, err := d.UUID()
	if err != nil {
		return nil, err
	}
	known := &d.session.library.links
	for i := range maxNVLinks {
		state, err := get(d.session, "nvmlDeviceGetNvLinkState", with(d.handle.GetNvLinkState, i))
		switch {
		case i > 0 && (errors.Is(err, nvml.NotSupported) || errors.Is(err, nvml.InvalidArgument)):
			return out, nil
		case err != nil:
			return nil, err
		case state != gonvml.FEATURE_ENABLED:
			known.Delete(linkKey{uuid, i})
			continue
		}
		if link, ok := known.Load(linkKey{uuid, i}); ok {
			out = append(out, link.(nvml.NVLink))
			continue
		}
		link, complete, err := d.nvlink(i)
		if err != nil {
			return nil, err
		}
		if complete {
			known.Store(linkKey{uuid, i}, link)
		}
		out = append(out, link)
	}
	return out, nil
}

// nvlink returns the facts of an active link, and whether NVML reported all that it has. The link may go down
// meanwhile, and old drivers report less.
func (d *device) nvlink(i int) (link nvml.NVLink, complete bool, err error) {
	link = nvml.NVLink{Index: i, Remote: nvml.RemoteUnknown}
	version, versionErr := get(d.session, "nvmlDeviceGetNvLinkVersion", with(d.handle.GetNvLinkVersion, i))
	if versionErr == nil {
		link.Version = int(version)
	} else if errors.Is(versionErr, nvml.GPUIsLost) {
		return link, false, versionErr
	}
	remote, remoteErr := get(d.session, "nvmlDeviceGetNvLinkRemoteDeviceType",
		with(d.handle.GetNvLinkRemoteDeviceType, i))
	if remoteErr == nil {
		link.Remote = nvml.RemoteDevice(remote)
	}
	at, atErr := get(d.session, "nvmlDeviceGetNvLinkRemotePciInfo_v2", with(d.handle.GetNvLinkRemotePciInfo, i))
	if atErr == nil {
		link.RemoteBusID = text(at.BusId[:])
	}
	for _, err := range []error{versionErr, remoteErr, atErr} {
		if err != nil && !nvml.Unavailable(err) {
			return link, false, nil
		}
	}
	return link, true, nil
}

func (d *device) NVLinkPeer(other nvml.Device) (bool, error) {
	o, ok := other.(*device)
	if !ok {
		return false, &nvml.Error{Query: "nvmlDeviceGetP2PStatus", Code: nvml.InvalidArgument}
	}
	status, err := get(d.session, "nvmlDeviceGetP2PStatus", func() (gonvml.GpuP2PStatus, gonvml.Return) {
		return d.handle.GetP2PStatus(o.handle, gonvml.P2P_CAPS_INDEX_NVLINK)
	})
	return err == nil && status == gonvml.P2P_STATUS_OK, err
}

// Fabric queries the newer function first, which drivers before 545 lack.
func (d *device) Fabric() (nvml.Fabric, error) {
	info, err := get(d.session, "nvmlDeviceGetGpuFabricInfoV", d.handle.GetGpuFabricInfoV().V2)
	if errors.Is(err, nvml.FunctionNotFound) {
		var old gonvml.GpuFabricInfo
		old, err = get(d.session, "nvmlDeviceGetGpuFabricInfo", d.handle.GetGpuFabricInfo)
		info = gonvml.GpuFabricInfo_v2{ClusterUuid: old.ClusterUuid, Status: old.Status, CliqueId: old.CliqueId,
			State: old.State}
	}
	switch {
	case err != nil:
		return nvml.Fabric{}, err
	case nvml.FabricState(info.State) == nvml.FabricNotSupported:
		return nvml.Fabric{}, &nvml.Error{Query: "nvmlDeviceGetGpuFabricInfoV", Code: nvml.NotSupported}
	}
	out := nvml.Fabric{State: nvml.FabricState(info.State), ClusterUUID: info.ClusterUuid, CliqueID: int(info.CliqueId)}
	if out.State == nvml.FabricCompleted && info.Status != 0 {
		out.Status = &nvml.Error{Query: "nvmlDeviceGetGpuFabricInfoV", Code: nvml.Code(info.Status)}
	}
	return out, nil
}
