// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"gpu-dra-driver/internal/nvml"
)

// TestHealth_RealGPUs_ReadInTime prints what polls read, and times them: a poll of all GPUs may take a hundredth of its
// interval. It registers for XIDs too, which changes nothing on the GPU.
func TestHealth_RealGPUs_ReadInTime(t *testing.T) {
	const interval, polls = 30 * time.Second, 20
	lib, s, ok := machine(t)
	if !ok {
		return
	}
	session, err := lib.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	var devices []nvml.Device
	for _, g := range s.GPUs {
		d, err := session.Device(g.Index)
		if err != nil {
			t.Fatalf("GPU %s: %v", g.PCIAddress, err)
		}
		devices = append(devices, d)
	}
	var times []time.Duration
	for range polls {
		began := time.Now()
		for n, d := range devices {
			h, err := d.Health()
			if err != nil {
				t.Errorf("GPU %s: %v", s.GPUs[n].PCIAddress, err)
			}
			if len(times) == 0 {
				fmt.Printf("GPU %s: %+v\n", s.GPUs[n].PCIAddress, h)
			}
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	fmt.Printf("a poll of %d GPUs: median %s, slowest %s\n", len(devices), times[polls/2], times[polls-1])
	if times[polls/2] > interval/100 {
		t.Errorf("a poll takes %s, want at most %s", times[polls/2], interval/100)
	}
	set, err := session.Events(devices)
	if nvml.Unavailable(err) {
		fmt.Printf("XIDs: %v\n", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("XIDs: %d GPUs refuse %v\n", len(set.Refused()), set.Refused())
	if e, err := set.Wait(time.Second); err == nil {
		fmt.Printf("XIDs: %+v\n", e)
	} else if !errors.Is(err, nvml.Timeout) {
		t.Errorf("wait for an XID: %v", err)
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
}
