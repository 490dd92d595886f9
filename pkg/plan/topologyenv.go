// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"strings"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/topology"
	"gpu-dra-driver/pkg/topology/nccl"
)

// setTopologyEnv sets the environment of a request's GPUs on its first device, because a container gets all devices of
// a request. A second request would overwrite it.
func (m maker) setTopologyEnv(p *Plan, chosen []parameters) error {
	first := -1
	for i, d := range p.Devices {
		asked := chosen[i].topology
		if asked == nil || d.Admin || !asked.CUDAVisibleDevices && !asked.NCCLTopology {
			continue
		}
		wrong := func(err error) error {
			return m.invalid(d.Name, d.Request, chosen[i].where, fmt.Errorf("topology: %w", err))
		}
		switch {
		case d.Partial():
			return wrong(errors.New("it is only for whole GPUs, but this is a share of one"))
		case first >= 0 && p.Devices[first].Request == d.Request:
			continue
		case first >= 0:
			return wrong(fmt.Errorf("request %q asks for it too, but a container has only one CUDA_VISIBLE_DEVICES and one NCCL_TOPO_FILE; ask in one request, and name the request in the container",
				p.Devices[first].Request))
		}
		first = i
		gpus := m.gpusOf(*p, d.Request)
		if asked.CUDAVisibleDevices {
			uuids := make([]string, len(gpus))
			for n, g := range gpus {
				uuids[n] = g.UUID
			}
			p.Devices[i].TopologyEnv.VisibleDevices = strings.Join(uuids, ",")
		}
		if asked.NCCLTopology {
			p.Devices[i].TopologyEnv.NCCLTopology = nccl.File(gpus)
		}
	}
	return nil
}

// gpusOf returns the GPUs of a request in link order.
func (m maker) gpusOf(p Plan, request string) []gpu.GPU {
	var addresses []string
	for _, d := range p.Devices {
		if d.Request == request && !d.Admin {
			addresses = append(addresses, d.PCIAddress)
		}
	}
	var out []gpu.GPU
	for _, address := range topology.Sort(m.node.Snapshot.GPUs, addresses) {
		g, _ := m.node.Snapshot.ByAddress(address) // The Snapshot contains all planned devices.
		out = append(out, g)
	}
	return out
}
