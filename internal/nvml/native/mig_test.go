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
	if _, err := each(func(int) (int, error) { calls++; return 0, nvml.NotSupported }); err != nil || calls != maxEntries {
		t.Errorf("each with no last index: %v after %d calls", err, calls)
	}
	if _, err := each(func(int) (int, error) { return 0, nvml.GPUIsLost }); !errors.Is(err, nvml.GPUIsLost) {
		t.Errorf("each of a lost GPU: %v", err)
	}
}

// TestInOrder_InstanceVanishes_ListsAgain has instances 98 and 99, whose query says that they vanished.
func TestInOrder_InstanceVanishes_ListsAgain(t *testing.T) {
	for _, code := range []nvml.Code{nvml.NotFound, nvml.InvalidArgument} {
		for name, c := range map[string]struct {
			lists [][]int
			want  []int
			err   error
		}{
			"repeated":             {[][]int{{4, 2, 2, 1}}, []int{1, 2, 4}, nil},
			"one vanished":         {[][]int{{4, 2, 99, 2, 1}, {4, 2, 2, 1}}, []int{1, 2, 4}, nil},
			"another one vanished": {[][]int{{4, 99, 98, 1}, {4, 98, 1}, {4, 1}}, []int{1, 4}, nil},
			"it is still listed":   {[][]int{{4, 99, 1}, {4, 99, 1}}, nil, code},
		} {
			lists := c.lists
			got, err := inOrder(func() (all []int, err error) {
				all, lists = lists[0], lists[1:]
				return all, nil
			}, func(i int) (int, error) {
				if i >= 98 {
					return 0, code
				}
				return i, nil
			})
			if diff := cmp.Diff(c.want, got); diff != "" || !errors.Is(err, c.err) || len(lists) > 0 {
				t.Errorf("%s: %v, %d lists are left (-want +got):\n%s", name, err, len(lists), diff)
			}
		}
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
