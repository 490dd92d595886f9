// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/sampler"
)

func nothing() sampler.Snapshot { return sampler.Snapshot{} }

// measured is a GPU with all measurements.
func measured(uuid string) sampler.Snapshot {
	return sampler.Snapshot{At: time.Unix(1700000000, 0), GPUs: []sampler.GPU{{
		Device: sampler.Device{Kind: gpu.KindGPU, Name: "gpu-0000-1b-00-0", UUID: uuid, Utilization: .5, SM: .4, Tensor: .2, DRAM: .25,
			MemoryUsed: 1 << 30, MemoryTotal: 4 << 30, MemoryReserved: 1 << 29, Processes: []sampler.Process{{PID: 1}}},
		Address: "0000:1b:00.0", Model: "NVIDIA H100", Index: 0, Minor: 3, MemoryUtilization: .1, Encoder: .3, Decoder: 0, PowerW: 200, TemperatureC: 40,
		Clocks: map[string]float64{"sm": 1.98e9, "memory": 2.6e9},
		Counters: nvml.Counters{EnergyMJ: 5000, MemoryTemperature: 45, PCIeSent: 10, PCIeReceived: 20, PCIeReplays: 1, NVLinkSent: 1 << 20, NVLinkReceived: 1 << 20,
			PowerCap: 1e9, SyncBoost: 0, SoftwareThermal: 2e9, HardwareThermal: 0, PowerBrake: 0},
	}}}
}

// partitioned is a GPU before Hopper, with a partition.
func partitioned() sampler.GPU {
	none := nvml.Counters{EnergyMJ: -1, MemoryTemperature: -1, PCIeSent: -1, PCIeReceived: -1, PCIeReplays: -1, NVLinkSent: -1, NVLinkReceived: -1,
		PowerCap: -1, SyncBoost: -1, SoftwareThermal: -1, HardwareThermal: -1, PowerBrake: -1}
	of := func(kind gpu.Kind, name, uuid string, used float64) sampler.Device {
		return sampler.Device{Kind: kind, Name: name, UUID: uuid, Utilization: -1, SM: -1, Tensor: -1, DRAM: -1, MemoryUsed: used, MemoryTotal: 5 << 30}
	}
	part := of(gpu.KindMIG, "gpu-1-mig-1g-5gb-0", "MIG-1", 2<<30)
	part.Profile, part.GPUInstance = "1g.5gb", 7
	return sampler.GPU{Device: of(gpu.KindGPU, "gpu-1", "GPU-1", 2<<30), Address: "0000:2a:00.0", Model: "NVIDIA A100", Index: 1, Minor: 1,
		MemoryUtilization: -1, Encoder: -1, Decoder: -1, PowerW: -1, TemperatureC: 30, Counters: none, Partitions: []sampler.Device{part}}
}

// claimsOf returns the plans and users of a node: a GPU, a partition, and two shares of a GPU.
func claimsOf() (fakeRecords, Users) {
	claim := func(n int) plan.Claim {
		return plan.Claim{Namespace: "ns", Name: fmt.Sprint("c", n), UID: fmt.Sprint("u", n)}
	}
	share := plan.Device{Request: "r", Name: "gpu-2", UUID: "GPU-2", Kind: gpu.KindGPU, Share: plan.Share{MemoryBytes: 2 << 30, UsableBytes: 1 << 30}}
	return fakeRecords{plans: []plan.Plan{
			{Claim: claim(0), Devices: []plan.Device{{Request: "r", Name: "gpu-0000-1b-00-0", UUID: "GPU-0", Kind: gpu.KindGPU}}},
			{Claim: claim(1), Devices: []plan.Device{{Request: "r", Name: "gpu-1-mig-1g-5gb-0", UUID: "GPU-1", Kind: gpu.KindMIG, Partition: plan.Partition{UUID: "MIG-1"}}}},
			{Claim: claim(2), Devices: []plan.Device{share}},
			{Claim: claim(3), Devices: []plan.Device{share}},
			{Claim: claim(4), Devices: []plan.Device{{Request: "r", Name: "monitor-0", UUID: "GPU-0", Kind: gpu.KindMonitor, Admin: true}}},
		}}, func(context.Context) (map[string][]User, error) {
			return map[string][]User{"u0-gpu-0000-1b-00-0": {{"p", "one"}, {"p", "two"}, {"q", "one"}}, "u1-gpu-1-mig-1g-5gb-0": {{"m", "main"}}}, nil
		}
}

func snapshotOf() sampler.Snapshot {
	s := measured("GPU-0")
	shared := measured("GPU-2").GPUs[0]
	shared.Name = "gpu-2"
	s.GPUs = append(s.GPUs, partitioned(), shared)
	return s
}

func TestDevicesCollector_Measurements_ServedInBaseUnits(t *testing.T) {
	m := New(Options{Driver: "d", Node: "n"})
	records, users := claimsOf()
	m.CollectRecords(records, users, snapshotOf)
	served := scrape(t, m)
	const board = `device="gpu-0000-1b-00-0",`
	const rest = `gpu_uuid="GPU-0",model="NVIDIA H100",node="n",`
	has(
		t, served,
		`gpu_dra_device_utilization_ratio{`+board+rest+`type="gpu",uuid="GPU-0"} 0.5`,
		`gpu_dra_device_energy_joules_total{`+board+rest+`type="gpu",uuid="GPU-0"} 5`,
		`gpu_dra_device_clock_hertz{clock="sm",`+board+rest+`type="gpu",uuid="GPU-0"} 1.98e+09`,
		`gpu_dra_device_throttled_seconds_total{`+board+rest+`reason="sw_thermal",type="gpu",uuid="GPU-0"} 2`,
		`gpu_dra_device_pcie_bytes_total{`+board+`direction="transmit",`+rest+`type="gpu",uuid="GPU-0"} 10`,
		`gpu_dra_device_nvlink_bytes_total{`+board+`direction="receive",`+rest+`type="gpu",uuid="GPU-0"} 1.048576e+06`,
		`gpu_dra_device_memory_used_bytes{device="gpu-1-mig-1g-5gb-0",gpu_uuid="GPU-1",model="NVIDIA A100",node="n",type="mig",uuid="MIG-1"} 2.147483648e+09`,
		`gpu_dra_last_sample_timestamp_seconds 1.7e+09`,
		`gpu_dra_claim_utilization_ratio{claim="c0",`+board+`model="NVIDIA H100",namespace="ns",node="n",pod="p",request="r",uuid="GPU-0"} 0.5`,
		`gpu_dra_claim_utilization_ratio{claim="c0",`+board+`model="NVIDIA H100",namespace="ns",node="n",pod="q",request="r",uuid="GPU-0"} 0.5`,
		`gpu_dra_claim_memory_used_bytes{claim="c1",device="gpu-1-mig-1g-5gb-0",model="NVIDIA A100",namespace="ns",node="n",pod="m",request="r",uuid="MIG-1"} 2.147483648e+09`,
		`gpu_dra_claim_memory_granted_bytes{claim="c2",device="gpu-2",model="NVIDIA H100",namespace="ns",node="n",pod="",request="r",uuid="GPU-2"} 1.073741824e+09`,
	)
	lacks(t, served, `gpu_dra_claim_utilization_ratio{claim="c1"`) // An A100's partition.
	lacks(t, served, `gpu_dra_claim_memory_used_bytes{claim="c2"`) // One of two shares.
	lacks(t, served, `gpu_dra_claim_memory_granted_bytes{claim="c4"`)
	for _, line := range served {
		if strings.Contains(line, `gpu_uuid="GPU-1"`) && (strings.Contains(line, "utilization") || strings.Contains(line, "power") || strings.Contains(line, "_active_")) {
			t.Errorf("a value that was not measured: %s", line)
		}
	}
}

// TestDevicesCollector_SharesOfOneRequest_CountTogether has a request with two shares of one GPU.
func TestDevicesCollector_SharesOfOneRequest_CountTogether(t *testing.T) {
	share := func(id string) plan.Device {
		return plan.Device{Request: "r", Name: "gpu-2", UUID: "GPU-2", Kind: gpu.KindGPU, ShareID: id, Share: plan.Share{MemoryBytes: 2 << 30, UsableBytes: 1 << 30}}
	}
	m := New(Options{Driver: "d", Node: "n"})
	m.CollectRecords(fakeRecords{plans: []plan.Plan{{Claim: plan.Claim{Namespace: "ns", Name: "c", UID: "u"}, Devices: []plan.Device{share("i"), share("j")}}}},
		nobody, snapshotOf)
	if _, err := m.registry.Gather(); err != nil {
		t.Error(err)
	}
	has(t, scrape(t, m),
		`gpu_dra_claim_memory_granted_bytes{claim="c",device="gpu-2",model="NVIDIA H100",namespace="ns",node="n",pod="",request="r",uuid="GPU-2"} 2.147483648e+09`)
}

// TestDevicesCollector_SharesWithMetadata_HaveTheirProcesses has two claims of a GPU that the driver samples at less than
// its processes together.
func TestDevicesCollector_SharesWithMetadata_HaveTheirProcesses(t *testing.T) {
	m := New(Options{Driver: "d", Node: "n"})
	records, users := claimsOf()
	records.plans[2].Metadata.Files, records.plans[3].Metadata.Files = true, true
	s := snapshotOf()
	s.GPUs[2].Processes = []sampler.Process{
		{PID: 1, Memory: 1 << 28, Utilization: .6, Files: []sampler.File{{Claim: "u2"}}}, {PID: 2, Memory: 1 << 29, Utilization: .2, Files: []sampler.File{{Claim: "u3"}}},
		{PID: 3, Memory: 1 << 20, Utilization: .2, Files: []sampler.File{}},
	}
	m.CollectRecords(records, users, func() sampler.Snapshot { return s })
	const rest = `device="gpu-2",model="NVIDIA H100",namespace="ns",node="n",pod="",request="r",uuid="GPU-2"} `
	has(
		t, scrape(t, m),
		`gpu_dra_claim_utilization_ratio{claim="c2",`+rest+`0.3`, `gpu_dra_claim_memory_used_bytes{claim="c2",`+rest+`2.68435456e+08`,
		`gpu_dra_claim_utilization_ratio{claim="c3",`+rest+`0.1`, `gpu_dra_claim_memory_used_bytes{claim="c3",`+rest+`5.36870912e+08`,
	)
}
