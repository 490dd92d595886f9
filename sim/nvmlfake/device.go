// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvmlfake

import (
	"cmp"
	"errors"
	"slices"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
)

type device struct {
	session *session
	slot    int
}

// ask runs a query and computes its answer from the view.
func ask[T any](d *device, query string, answer func(engine.View) (T, nvml.Code)) (T, error) {
	var none T
	inner, code := d.session.open()
	if code != 0 {
		return none, failed(query, code)
	}
	v, code := inner.Query(query, d.slot)
	if code != 0 {
		return none, failed(query, code)
	}
	value, code := answer(v)
	return value, failed(query, code)
}

func get[T any](d *device, query string, value func(engine.View) T) (T, error) {
	return ask(d, query, func(v engine.View) (T, nvml.Code) { return value(v), 0 })
}

func (d *device) UUID() (string, error) {
	return get(d, "nvmlDeviceGetUUID", func(v engine.View) string { return v.UUID })
}

func (d *device) PCI() (nvml.PCIInfo, error) {
	return get(d, "nvmlDeviceGetPciInfo_v3", func(v engine.View) nvml.PCIInfo {
		return nvml.PCIInfo{BusID: v.BusID(), DeviceID: v.Board.DeviceID(), SubsystemID: v.Board.SubsystemID()}
	})
}

func (d *device) MinorNumber() (int, error) {
	return get(d, "nvmlDeviceGetMinorNumber", func(v engine.View) int { return v.Minor })
}

func (d *device) Name() (string, error) {
	return get(d, "nvmlDeviceGetName", func(v engine.View) string { return v.Board.ProductName })
}

func (d *device) Brand() (nvml.Brand, error) {
	return get(d, "nvmlDeviceGetBrand", func(v engine.View) nvml.Brand { return nvml.Brand(v.Board.Brand) })
}

func (d *device) Architecture() (nvml.Architecture, error) {
	return get(d, "nvmlDeviceGetArchitecture", func(v engine.View) nvml.Architecture {
		return nvml.Architecture(v.Board.Architecture)
	})
}

func (d *device) CUDAComputeCapability() (major, minor int, err error) {
	cc, err := get(d, "nvmlDeviceGetCudaComputeCapability", func(v engine.View) [2]int {
		return [2]int{v.Board.ComputeMajor, v.Board.ComputeMinor}
	})
	return cc[0], cc[1], err
}

func (d *device) Memory() (nvml.MemoryInfo, error) {
	return get(d, "nvmlDeviceGetMemoryInfo_v2", engine.View.Memory)
}

func (d *device) Cores() (int, error) {
	return ask(d, "nvmlDeviceGetNumGpuCores", func(v engine.View) (int, nvml.Code) {
		n := v.Cores()
		if n < 0 {
			return 0, nvml.NotSupported
		}
		return n, 0
	})
}

func (d *device) AddressingMode() (nvml.AddressingMode, error) {
	return ask(d, "nvmlDeviceGetAddressingMode", func(v engine.View) (nvml.AddressingMode, nvml.Code) {
		if !v.Board.AddressingModeReported {
			return 0, nvml.NotSupported
		}
		return nvml.AddressingMode(v.Board.AddressingMode), 0
	})
}

func (d *device) MIGMode() (current, pending bool, err error) {
	mode, err := ask(d, "nvmlDeviceGetMigMode", func(v engine.View) ([2]bool, nvml.Code) {
		if !v.Board.MIGCapable {
			return [2]bool{}, nvml.NotSupported
		}
		return [2]bool{v.MIGEnabled, v.MIGPending}, 0
	})
	return mode[0], mode[1], err
}

func (d *device) VirtualizationMode() (nvml.VirtualizationMode, error) {
	return get(d, "nvmlDeviceGetVirtualizationMode", func(v engine.View) nvml.VirtualizationMode { return v.Virtualization })
}

func (d *device) ComputeMode() (nvml.ComputeMode, error) {
	return get(d, "nvmlDeviceGetComputeMode", func(v engine.View) nvml.ComputeMode { return nvml.ComputeMode(v.ComputeMode) })
}

func (d *device) SetComputeMode(m nvml.ComputeMode) error {
	return d.mutate("nvmlDeviceSetComputeMode", func(_ *engine.State, g *engine.GPU) nvml.Code { return g.SetComputeMode(m) })
}

func (d *device) MemoryLimit(cgroup string) (uint64, error) {
	return ask(d, "nvmlDeviceGetMemoryLimits_v1", func(v engine.View) (uint64, nvml.Code) {
		id, err := engine.CgroupAt(cgroup)
		if err != nil {
			return 0, nvml.OperatingSystem
		}
		l, _, code := v.MemoryLimit(v.GPU, id)
		return l.Hard, code
	})
}

func (d *device) SetMemoryLimit(cgroup string, bytes uint64) error {
	return d.mutate("nvmlDeviceSetMemoryLimits_v1", func(s *engine.State, g *engine.GPU) nvml.Code {
		id, err := engine.CgroupAt(cgroup)
		if err != nil {
			return nvml.OperatingSystem
		}
		return s.SetMemoryLimit(g, engine.MemoryLimit{Cgroup: id, Hard: bytes})
	})
}

func (d *device) NVLinks() ([]nvml.NVLink, error) {
	return ask(d, "nvmlDeviceGetNvLinkState", func(v engine.View) ([]nvml.NVLink, nvml.Code) {
		if v.Board.NVLinks == 0 {
			return nil, nvml.NotSupported
		}
		var out []nvml.NVLink
		for i, l := range v.NVLinks(v.GPU) {
			if l.Up {
				out = append(out, nvml.NVLink{Index: i, Version: l.Version, Remote: l.Remote, RemoteBusID: l.RemoteBusID()})
			}
		}
		return out, 0
	})
}

func (d *device) NVLinkPeer(other nvml.Device) (bool, error) {
	const query = "nvmlDeviceGetP2PStatus"
	o, ok := other.(*device)
	if !ok || o.slot == d.slot {
		return false, failed(query, nvml.InvalidArgument)
	}
	return ask(d, query, func(v engine.View) (bool, nvml.Code) {
		peer := &v.State.GPUs[o.slot]
		if peer.Lost || peer.OffBus {
			return false, nvml.GPUIsLost
		}
		return v.Peers(v.GPU, peer), 0
	})
}

func (d *device) Fabric() (nvml.Fabric, error) {
	return ask(d, "nvmlDeviceGetGpuFabricInfoV", func(v engine.View) (nvml.Fabric, nvml.Code) {
		f := v.FabricOf(v.GPU)
		if f.State == nvml.FabricNotSupported {
			return f, nvml.NotSupported
		}
		if code := nvml.Code(0); errors.As(f.Status, &code) {
			f.Status = failed("nvmlDeviceGetGpuFabricInfoV", code)
		}
		return f, 0
	})
}

func (d *device) Health() (nvml.Health, error) {
	h, err := ask(d, "nvmlDeviceGetFieldValues", func(v engine.View) (nvml.Health, nvml.Code) {
		var failed nvml.Code
		value := func(field uint32, without int64) int64 {
			n, code := v.HealthField(field)
			if code = cmp.Or(v.FieldFault(field), code); code == 0 {
				return int64(n)
			}
			if code == nvml.GPUIsLost || code == nvml.ResetRequired {
				failed = code
			}
			return without
		}
		h := nvml.Health{
			Recovery:     nvml.RecoveryAction(value(engine.FieldRecoveryAction, int64(nvml.RecoveryUnsupported))),
			RemapPending: value(engine.FieldRemapPending, 0) != 0, RemapFailed: value(engine.FieldRemapFailed, 0) != 0,
			CorrectableErrors:   value(engine.FieldCorrectable, nvml.NotReported),
			UncorrectableErrors: value(engine.FieldUncorrectable, nvml.NotReported),
			CorrectableRows:     value(engine.FieldRemappedCor, nvml.NotReported),
			UncorrectableRows:   value(engine.FieldRemappedUnc, nvml.NotReported),
		}
		return h, failed
	})
	for _, more := range []struct {
		query string
		set   func(engine.View)
	}{
		{"nvmlDeviceGetSramEccErrorStatus", func(v engine.View) { h.SRAMThresholdExceeded = v.SRAMThreshold && v.Board.ECC }},
		{"nvmlDeviceGetUnrepairableMemoryFlag_v1", func(v engine.View) { h.UnrepairableMemory = v.UnrepairableMemory }},
		{"nvmlDeviceGetCurrentClocksEventReasons", func(v engine.View) { h.Slowdowns = v.Slowdowns }},
		{"nvmlDeviceGetPersistenceMode", func(v engine.View) { h.NoPersistence = !v.Persistence }},
		{"nvmlDeviceGetCurrPcieLinkWidth", func(v engine.View) { h.PCIeWidth = v.PCIeWidth() }},
		{"nvmlDeviceGetMaxPcieLinkWidth", func(v engine.View) { h.PCIeMaxWidth = v.Board.PCIeWidth }},
		{"nvmlDeviceGetUtilizationRates", func(v engine.View) { h.Busy = h.PCIeWidth < h.PCIeMaxWidth && !v.MIGEnabled && v.Utilization > 0 }},
	} {
		if err != nil {
			return nvml.Health{}, err
		}
		_, err = get(d, more.query, func(v engine.View) bool { more.set(v); return true })
		if !errors.Is(err, nvml.GPUIsLost) && !errors.Is(err, nvml.ResetRequired) {
			err = nil // The real binding leaves the fact out.
		}
	}
	return h, err
}

func (d *device) Processes() ([]nvml.Process, error) {
	compute, err := d.holders("nvmlDeviceGetComputeRunningProcesses_v3", false)
	if err != nil {
		return nil, err
	}
	graphics, err := d.holders("nvmlDeviceGetGraphicsRunningProcesses_v3", true)
	if err != nil && !nvml.Unavailable(err) {
		return nil, err
	}
	all := append(compute, graphics...)
	slices.SortFunc(all, func(a, b nvml.Process) int { return cmp.Compare(a.PID, b.PID) })
	return all, nil
}

func (d *device) holders(query string, graphics bool) ([]nvml.Process, error) {
	return get(d, query, func(v engine.View) []nvml.Process {
		var held []nvml.Process
		for _, p := range v.Processes {
			if p.Graphics == graphics {
				one := nvml.Process{PID: p.PID, GPUInstance: -1, ComputeInstance: -1}
				if p.Place != nil {
					one.GPUInstance, one.ComputeInstance = p.Place.GPUInstance, p.Place.ComputeInstance
				}
				held = append(held, one)
			}
		}
		return held
	})
}
