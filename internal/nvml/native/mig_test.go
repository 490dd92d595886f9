// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
)

func TestMerge_RepeatedProcess_ListedOncePerInstance(t *testing.T) {
	const whole = ^uint32(0)
	got := merge([]gonvml.ProcessInfo{
		{Pid: 9, UsedGpuMemory: 4, GpuInstanceId: 7, ComputeInstanceId: 1},
		{Pid: 9, UsedGpuMemory: 3, GpuInstanceId: 7, ComputeInstanceId: 0},
		{Pid: 9, UsedGpuMemory: 2, GpuInstanceId: 2, ComputeInstanceId: 0},
		{Pid: 9, UsedGpuMemory: ^uint64(0), GpuInstanceId: 2, ComputeInstanceId: 0},
		{Pid: 5, UsedGpuMemory: 1, GpuInstanceId: whole, ComputeInstanceId: whole},
	})
	want := []nvml.Process{
		{PID: 5, GPUInstance: -1, ComputeInstance: -1},
		{PID: 9, GPUInstance: 2},
		{PID: 9, GPUInstance: 7},
		{PID: 9, GPUInstance: 7, ComputeInstance: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("merged (-want +got):\n%s", diff)
	}
}

func TestList_CountBeyondArray_ReturnsUnknown(t *testing.T) {
	got, err := list(first(t).(*device).session, "nvmlDeviceGetName", func() ([]int, gonvml.Return) {
		array, count := make([]int, 1), 3
		return array[:count], gonvml.SUCCESS
	})
	if !errors.Is(err, nvml.Unknown) || got != nil {
		t.Errorf("list = %v, %v; want Unknown", got, err)
	}
}

func TestEach_InvalidArgument_EndsList(t *testing.T) {
	answers := map[int]error{0: nil, 1: nvml.NotSupported, 2: nil, 3: nvml.InvalidArgument, 4: nil}
	got, err := each(func(index int) (int, error) { return index, answers[index] })
	if diff := cmp.Diff([]int{0, 2}, got); diff != "" || err != nil {
		t.Errorf("each: %v (-want +got):\n%s", err, diff)
	}
	calls := 0
	if _, err := each(func(int) (int, error) { calls++; return 0, nvml.NotSupported }); err != nil || calls != most {
		t.Errorf("each with no last index: %v after %d calls", err, calls)
	}
	if _, err := each(func(int) (int, error) { return 0, nvml.GPUIsLost }); !errors.Is(err, nvml.GPUIsLost) {
		t.Errorf("each of a lost GPU: %v", err)
	}
}

func TestInOrder_RepeatedAndGone_SortedOnce(t *testing.T) {
	got, err := inOrder([]int{4, 2, 99, 2, 1}, func(i int) (int, error) {
		if i == 99 {
			return 0, nvml.NotFound
		}
		return i, nil
	})
	if diff := cmp.Diff([]int{1, 2, 4}, got); diff != "" || err != nil {
		t.Errorf("inOrder: %v (-want +got):\n%s", err, diff)
	}
}

func TestCreateGPUInstance_NegativeNumber_ReturnsInvalidArgument(t *testing.T) {
	d := first(t)
	for name, err := range map[string]error{
		"profile": second(d.CreateGPUInstance(-1, nvml.MIGPlacement{})),
		"start":   second(d.CreateGPUInstance(0, nvml.MIGPlacement{Start: -1, Size: 1})),
		"size":    second(d.CreateGPUInstance(0, nvml.MIGPlacement{Size: -1})),
	} {
		if !errors.Is(err, nvml.InvalidArgument) {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
