// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package real

import (
	"errors"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
)

// NVLinks asks link by link: a GPU has fewer than NVML knows of, and says so of the first that it lacks.
func (d *device) NVLinks() ([]nvml.NVLink, error) {
	var out []nvml.NVLink
	for i := range nvml.MaxNVLinks {
		state, err := get(d.session, "nvmlDeviceGetNvLinkState", with(d.handle.GetNvLinkState, i))
		switch {
		case i > 0 && (errors.Is(err, nvml.NotSupported) || errors.Is(err, nvml.InvalidArgument)):
			return out, nil
		case err != nil:
			return nil, err
		case state != gonvml.FEATURE_ENABLED:
			continue
		}
		link, err := d.nvlink(i)
		if err != nil {
			return nil, err
		}
		out = append(out, link)
	}
	return out, nil
}

// nvlink is what is known of a link that is up. It may go down meanwhile, and old drivers tell less.
func (d *device) nvlink(i int) (nvml.NVLink, error) {
	link := nvml.NVLink{Index: i, Remote: nvml.RemoteUnknown}
	version, err := get(d.session, "nvmlDeviceGetNvLinkVersion", with(d.handle.GetNvLinkVersion, i))
	if err == nil {
		link.Version = int(version)
	} else if errors.Is(err, nvml.GPUIsLost) {
		return link, err
	}
	remote, err := get(d.session, "nvmlDeviceGetNvLinkRemoteDeviceType", with(d.handle.GetNvLinkRemoteDeviceType, i))
	if err == nil {
		link.Remote = nvml.RemoteDevice(remote)
	}
	at, err := get(d.session, "nvmlDeviceGetNvLinkRemotePciInfo_v2", with(d.handle.GetNvLinkRemotePciInfo, i))
	if err == nil {
		link.RemoteBusID = text(at.BusId[:])
	}
	return link, nil
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

// Fabric asks in the newer form first, which drivers before 545 lack.
func (d *device) Fabric() (nvml.Fabric, error) {
	info, err := get(d.session, "nvmlDeviceGetGpuFabricInfoV", d.handle.GetGpuFabricInfoV().V2)
	if errors.Is(err, nvml.FunctionNotFound) {
		var old gonvml.GpuFabricInfo
		old, err = get(d.session, "nvmlDeviceGetGpuFabricInfo", d.handle.GetGpuFabricInfo)
		info = gonvml.GpuFabricInfo_v2{ClusterUuid: old.ClusterUuid, Status: old.Status, CliqueId: old.CliqueId, State: old.State}
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
