// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"gpu-dra-driver/sim/engine"
)

// Facts are the data that nvidia-smi prints.
type Facts struct {
	Driver string `json:"driver"`
	// CUDA is 1000 × major + 10 × minor.
	CUDA int   `json:"cuda"`
	GPUs []GPU `json:"gpus"`
}

// GPU is one board and, on the host, its readings.
type GPU struct {
	Minor        int    `json:"minor"`
	Name         string `json:"name"`
	UUID         string `json:"uuid"`
	BusID        string `json:"busID"`
	Serial       string `json:"serial"`
	VBIOS        string `json:"vbios"`
	MemoryMiB    uint64 `json:"memoryMiB"`
	ReservedMiB  uint64 `json:"reservedMiB"`
	PowerLimitW  int    `json:"powerLimitW"`
	ComputeMajor int    `json:"computeMajor"`
	ComputeMinor int    `json:"computeMinor"`
	MIGCapable   bool   `json:"migCapable"`
	MIGEnabled   bool   `json:"migEnabled,omitempty"`
	// Partitions lists its MIG devices.
	Partitions []Partition `json:"partitions,omitempty"`
	ECC        bool        `json:"ecc"`
	PerfState  int         `json:"perfState"`
	PCIeGen    int         `json:"pcieGen"`
	PCIeWidth  int         `json:"pcieWidth"`

	TemperatureC int               `json:"temperatureC"`
	PowerW       int               `json:"powerW"`
	Utilization  int               `json:"utilization"`
	MemoryUtil   int               `json:"memoryUtilization"`
	ComputeMode  int               `json:"computeMode"`
	TimeSlice    int               `json:"timeSlice,omitempty"`
	Persistence  bool              `json:"persistence"`
	Lost         bool              `json:"lost,omitempty"`
	Processes    []engine.Process  `json:"processes,omitempty"`
	Clocks       map[string][2]int `json:"clocks,omitempty"`
}

// UsedMiB returns the memory of the processes.
func (g GPU) UsedMiB() uint64 {
	var sum uint64
	for _, p := range g.Processes {
		sum += p.MemoryMiB
	}
	return sum
}

// FromState returns the facts of a machine.
func FromState(s *engine.State) Facts {
	f := Facts{Driver: s.Profile.Driver.Version, CUDA: s.Profile.Driver.CUDA}
	b := s.Profile.Board
	for _, i := range s.OnBus() {
		g := &s.GPUs[i]
		v := engine.View{State: s, GPU: g, Board: b}
		f.GPUs = append(f.GPUs, GPU{
			Minor: g.Minor, Name: b.ProductName, UUID: g.UUID, BusID: g.BusID(), Serial: g.Serial, VBIOS: b.VBIOS,
			MemoryMiB: b.MemoryMiB, ReservedMiB: b.ReservedMiB, PowerLimitW: b.Power.Default,
			ComputeMajor: b.ComputeMajor, ComputeMinor: b.ComputeMinor, MIGCapable: b.MIGCapable, ECC: b.ECC, MIGEnabled: g.MIGEnabled, Partitions: partitionsOf(s, g),
			PerfState: b.IdlePerfState, PCIeGen: b.PCIeGen, PCIeWidth: b.PCIeWidth,
			TemperatureC: v.HeatC(), PowerW: v.DrawW(), Utilization: v.LoadPercent(), MemoryUtil: v.MemoryLoadPercent(),
			ComputeMode: g.ComputeMode, TimeSlice: g.TimeSlice, Persistence: g.Persistence, Lost: g.Lost, Processes: g.Processes,
			Clocks: map[string][2]int{
				"graphics": {b.Clocks.IdleGraphics, b.Clocks.MaxGraphics}, "sm": {b.Clocks.IdleGraphics, b.Clocks.MaxGraphics},
				"memory": {b.Clocks.IdleMemory, b.Clocks.MaxMemory},
			},
		})
	}
	return f
}

// Static returns the facts that are constant while a machine runs: its idle GPUs. The firmware files contain them.
func Static(s *engine.State) Facts {
	idle := s.Clone()
	b := s.Profile.Board
	for i := range idle.GPUs {
		g := &idle.GPUs[i]
		*g = engine.GPU{Address: g.Address, UUID: g.UUID, Serial: g.Serial, Minor: g.Minor, OffBus: g.OffBus,
			Persistence: true, TemperatureC: b.IdleTempC, PowerW: b.Power.Idle}
	}
	return FromState(idle)
}

const firmwareMagic = "gpusim placeholder firmware\n"

// Firmware returns the content of a placeholder firmware file.
func (f Facts) Firmware() ([]byte, error) {
	b, err := json.Marshal(f)
	return append([]byte(firmwareMagic), append(b, '\n')...), err
}

// DecodeFirmware decodes the content that Firmware returns.
func DecodeFirmware(b []byte) (Facts, error) {
	body, ok := bytes.CutPrefix(b, []byte(firmwareMagic))
	if !ok {
		return Facts{}, errors.New("not a placeholder firmware of the simulator")
	}
	var f Facts
	if err := json.Unmarshal(body, &f); err != nil {
		return Facts{}, fmt.Errorf("placeholder firmware: %w", err)
	}
	return f, nil
}
