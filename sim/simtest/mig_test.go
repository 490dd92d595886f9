// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package simtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/sim/engine"
)

func cutting(t *testing.T, lib gonvml.Interface) gonvml.Device {
	t.Helper()
	d := first(t, lib)
	activation, ret := d.SetMigMode(gonvml.DEVICE_MIG_ENABLE)
	ok(t, "SetMigMode", ret)
	ok(t, "SetMigMode's activation", activation)
	return d
}

// partition creates a GPU instance with a compute instance of full size.
func partition(t *testing.T, d gonvml.Device, profile, computeProfile, start int) (gonvml.GpuInstance, gonvml.ComputeInstance) {
	t.Helper()
	info, ret := d.GetGpuInstanceProfileInfo(profile)
	ok(t, "GetGpuInstanceProfileInfo", ret)
	all, ret := d.GetGpuInstancePossiblePlacements(&info)
	ok(t, "GetGpuInstancePossiblePlacements", ret)
	g, ret := d.CreateGpuInstanceWithPlacement(&info, &gonvml.GpuInstancePlacement{Start: uint32(start), Size: all[0].Size})
	ok(t, "CreateGpuInstanceWithPlacement", ret)
	part, ret := g.GetComputeInstanceProfileInfo(computeProfile, 0)
	ok(t, "GetComputeInstanceProfileInfo", ret)
	c, ret := g.CreateComputeInstance(&part)
	ok(t, "CreateComputeInstance", ret)
	return g, c
}

func expect(t *testing.T, cases map[string]struct{ got, want any }) {
	t.Helper()
	for query, c := range cases {
		if got, want := fmt.Sprint(c.got), fmt.Sprint(c.want); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
}

func TestLibrary_MIGDevice_IsDevice(t *testing.T) {
	r := Root(t, "hgx-h100", nil)
	lib := initialised(t, r)
	parent := cutting(t, lib)
	partition(t, parent, gonvml.GPU_INSTANCE_PROFILE_3_SLICE, gonvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, 4)
	d, ret := parent.GetMigDeviceHandleByIndex(0)
	ok(t, "GetMigDeviceHandleByIndex", ret)
	var gi engine.Instance
	Change(t, r, func(s *engine.State) {
		gi = s.GPUs[0].Instances[0]
		s.GPUs[0].Processes = []engine.Process{{PID: 7, MemoryMiB: 64, Place: &engine.Place{GPUInstance: gi.ID, ComputeInstance: gi.Computes[0].ID}}}
	})
	profile, _ := parent.GetGpuInstanceProfileInfoV(gonvml.GPU_INSTANCE_PROFILE_3_SLICE).V3()
	total := profile.MemorySizeMB << 20
	attributes, ret := d.GetAttributes()
	ok(t, "GetAttributes", ret)
	byUUID, ret := lib.DeviceGetHandleByUUID(gi.Computes[0].UUID)
	ok(t, "DeviceGetHandleByUUID", ret)
	back, ret := d.GetDeviceHandleFromMigDeviceHandle()
	ok(t, "GetDeviceHandleFromMigDeviceHandle", ret)
	held := []gonvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 64 << 20, GpuInstanceId: uint32(gi.ID), ComputeInstanceId: uint32(gi.Computes[0].ID)}}
	expect(t, map[string]struct{ got, want any }{
		"name":               {answer(d.GetName()), "NVIDIA H100 80GB HBM3 MIG 3g.40gb"},
		"UUID":               {answer(d.GetUUID()), gi.Computes[0].UUID},
		"by UUID":            {byUUID == d, true},
		"parent":             {back == parent, true},
		"is one":             {answer(d.IsMigDeviceHandle()), true},
		"its parent is none": {answer(parent.IsMigDeviceHandle()), false},
		"GPU instance":       {answer(d.GetGpuInstanceId()), gi.ID},
		"compute instance":   {answer(d.GetComputeInstanceId()), gi.Computes[0].ID},
		"memory":             {answer(d.GetMemoryInfo()), gonvml.Memory{Total: total, Free: total - 64<<20, Used: 64 << 20}},
		"its processes":      {answer(d.GetComputeRunningProcesses()), held},
		"the parent's":       {answer(parent.GetComputeRunningProcesses()), held},
		"slices":             {[]uint32{attributes.GpuInstanceSliceCount, attributes.ComputeInstanceSliceCount}, "[3 3]"},
		"multiprocessors":    {attributes.MultiprocessorCount, profile.MultiprocessorCount},
		"attributes' memory": {attributes.MemorySizeMB, profile.MemorySizeMB},
		"index":              {answer(d.GetIndex()), 0},
		"BAR1":               {answer(d.GetBAR1MemoryInfo()), gonvml.BAR1Memory{Bar1Total: 65536 << 20, Bar1Free: 65536 << 20}},
		"ECC":                {answer(d.GetTotalEccErrors(gonvml.MEMORY_ERROR_TYPE_CORRECTED, gonvml.VOLATILE_ECC)), 0},
		"utilization":        {answer(parent.GetUtilizationRates()), gonvml.ERROR_NOT_SUPPORTED},
		"cores":              {answer(parent.GetNumGpuCores()), gonvml.ERROR_NOT_SUPPORTED},
		"decoder":            {decoder(parent.GetDecoderUtilization()), gonvml.ERROR_NOT_SUPPORTED},
		"remapped rows":      {answer(parent.GetRowRemapperHistogram()), gonvml.ERROR_NOT_SUPPORTED},
		"a GPU's own query":  {answer(d.GetMinorNumber()), gonvml.ERROR_NOT_SUPPORTED},
		"of a whole GPU":     {answer(parent.GetGpuInstanceId()), gonvml.ERROR_INVALID_ARGUMENT},
		"beyond the last":    {answer(parent.GetMigDeviceHandleByIndex(1)), gonvml.ERROR_NOT_FOUND},
		"of no UUID":         {answer(lib.DeviceGetHandleByUUID("MIG-no")), gonvml.ERROR_NOT_FOUND},
	})
}

func TestLibrary_ProfileVersions_AllAnswer(t *testing.T) {
	r := Root(t, "dgx-a100-40", nil)
	d := first(t, initialised(t, r))
	v1, ret := d.GetGpuInstanceProfileInfo(gonvml.GPU_INSTANCE_PROFILE_2_SLICE)
	ok(t, "V1", ret)
	v2, ret := d.GetGpuInstanceProfileInfoV(gonvml.GPU_INSTANCE_PROFILE_2_SLICE).V2()
	ok(t, "V2", ret)
	v3, ret := d.GetGpuInstanceProfileInfoByIdV(int(v1.Id)).V3()
	ok(t, "V3 by ID", ret)
	row := func(v ...any) string { return fmt.Sprint(v...) }
	text := func(a [96]int8) string {
		b := make([]byte, 0, len(a))
		for _, c := range a {
			if c != 0 {
				b = append(b, byte(c))
			}
		}
		return string(b)
	}
	want := row(14, 2, 3, v1.MultiprocessorCount, v1.CopyEngineCount, v1.DecoderCount, v1.MemorySizeMB)
	expect(t, map[string]struct{ got, want any }{
		"first":  {row(v1.Id, v1.SliceCount, v1.InstanceCount, v1.MultiprocessorCount, v1.CopyEngineCount, v1.DecoderCount, v1.MemorySizeMB), want},
		"second": {row(v2.Id, v2.SliceCount, v2.InstanceCount, v2.MultiprocessorCount, v2.CopyEngineCount, v2.DecoderCount, v2.MemorySizeMB), want},
		"third":  {row(v3.Id, v3.SliceCount, v3.InstanceCount, v3.MultiprocessorCount, v3.CopyEngineCount, v3.DecoderCount, v3.MemorySizeMB), want},
		"name":   {text(v2.Name) + text(v3.Name), "MIG 2g.10gbMIG 2g.10gb"},
	})
}

func TestLibrary_RemainingCapacity_IsCounted(t *testing.T) {
	r := Root(t, "hgx-h100", nil)
	d := cutting(t, initialised(t, r))
	info, ret := d.GetGpuInstanceProfileInfo(gonvml.GPU_INSTANCE_PROFILE_1_SLICE)
	ok(t, "GetGpuInstanceProfileInfo", ret)
	before := answer(d.GetGpuInstanceRemainingCapacity(&info))
	one, ret := d.CreateGpuInstance(&info)
	ok(t, "CreateGpuInstance", ret)
	at, ret := one.GetInfo()
	ok(t, "GetInfo", ret)
	same, ret := d.GetGpuInstanceById(int(at.Id))
	ok(t, "GetGpuInstanceById", ret)
	after := answer(d.GetGpuInstanceRemainingCapacity(&info))
	ok(t, "Destroy", one.Destroy())

	big, ret := d.GetGpuInstanceProfileInfo(gonvml.GPU_INSTANCE_PROFILE_4_SLICE)
	ok(t, "GetGpuInstanceProfileInfo", ret)
	g, ret := d.CreateGpuInstance(&big)
	ok(t, "CreateGpuInstance", ret)
	quarter, ret := g.GetComputeInstanceProfileInfo(gonvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 0)
	ok(t, "GetComputeInstanceProfileInfo", ret)
	place := gonvml.ComputeInstancePlacement{Start: 2, Size: 1}
	c, ret := g.CreateComputeInstanceWithPlacement(&quarter, &place)
	ok(t, "CreateComputeInstanceWithPlacement", ret)
	there, ret := c.GetInfo()
	ok(t, "GetInfo", ret)
	expect(t, map[string]struct{ got, want any }{
		"an empty GPU":               {before, 7},
		"with one":                   {after, 6},
		"by ID":                      {same == one, true},
		"of no such ID":              {answer(d.GetGpuInstanceById(14)), gonvml.ERROR_NOT_FOUND},
		"place":                      {there.Placement, place},
		"there again":                {answer(g.CreateComputeInstanceWithPlacement(&quarter, &place)), gonvml.ERROR_INSUFFICIENT_RESOURCES},
		"beyond its end":             {answer(g.CreateComputeInstanceWithPlacement(&quarter, &gonvml.ComputeInstancePlacement{Start: 4, Size: 1})), gonvml.ERROR_INVALID_ARGUMENT},
		"compute slices left":        {answer(g.GetComputeInstanceRemainingCapacity(&quarter)), 3},
		"places for compute":         {len(answer(g.GetComputeInstancePossiblePlacements(&quarter)).([]gonvml.ComputeInstancePlacement)), 4},
		"compute instances":          {len(answer(g.GetComputeInstances(&quarter)).([]gonvml.ComputeInstance)), 1},
		"by a compute ID that is no": {answer(g.GetComputeInstanceById(6)), gonvml.ERROR_NOT_FOUND},
	})
}

func TestLibrary_InstanceMade_CapabilityFilesFollow(t *testing.T) {
	r := Root(t, "hgx-h100", nil)
	d := cutting(t, initialised(t, r))
	g, c := partition(t, d, gonvml.GPU_INSTANCE_PROFILE_1_SLICE, gonvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 2)
	info, ret := g.GetInfo()
	ok(t, "GetInfo", ret)
	of := filepath.Join(r.ProcRoot, fmt.Sprintf("driver/nvidia/capabilities/gpu0/mig/gi%d", info.Id))
	nodes := []string{
		filepath.Join(of, "access"), filepath.Join(of, "ci0/access"),
		filepath.Join(r.Path, fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", engine.InstanceMinor(0, int(info.Id)))),
		filepath.Join(r.Path, fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", engine.ComputeMinor(0, int(info.Id), 0))),
	}
	for _, path := range nodes {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("with the partition: %v", err)
		}
	}
	ok(t, "destroy the compute instance", c.Destroy())
	ok(t, "destroy the GPU instance", g.Destroy())
	for _, path := range nodes {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("without the partition %s is there: %v", path, err)
		}
	}
}

func TestLibrary_StaleHandle_ReturnsError(t *testing.T) {
	r := Root(t, "hgx-h100", nil)
	lib := initialised(t, r)
	d := cutting(t, lib)
	g, c := partition(t, d, gonvml.GPU_INSTANCE_PROFILE_1_SLICE, gonvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 0)
	part, ret := d.GetMigDeviceHandleByIndex(0)
	ok(t, "GetMigDeviceHandleByIndex", ret)
	ok(t, "destroy the compute instance", c.Destroy())
	ok(t, "destroy the GPU instance", g.Destroy())
	// The next one is another instance with the same IDs.
	_, second := partition(t, d, gonvml.GPU_INSTANCE_PROFILE_1_SLICE, gonvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 0)
	expect(t, map[string]struct{ got, want any }{
		"GPU instance":          {answer(g.GetInfo()), gonvml.ERROR_INVALID_ARGUMENT},
		"destroying it":         {g.Destroy(), gonvml.ERROR_INVALID_ARGUMENT},
		"compute instance":      {answer(c.GetInfo()), gonvml.ERROR_INVALID_ARGUMENT},
		"destroying that":       {c.Destroy(), gonvml.ERROR_INVALID_ARGUMENT},
		"device":                {answer(part.GetUUID()), gonvml.ERROR_INVALID_ARGUMENT},
		"the next, in its life": {second.Destroy(), gonvml.SUCCESS},
	})
}

func decoder(percent, _ uint32, ret gonvml.Return) any { return answer(percent, ret) }
