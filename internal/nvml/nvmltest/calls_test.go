// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvmltest_test

import (
	"errors"
	"slices"
	"testing"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// devices opens a machine's first two GPUs, with faults.
func devices(t *testing.T) (f *nvmltest.Calls, a, b nvml.Device, uuids []string) {
	t.Helper()
	f = &nvmltest.Calls{}
	s, err := nvmlfake.WithHook(simtest.MachineInMemory(t, "hgx-h100", 0), f.Do).Open()
	if err != nil {
		t.Fatal(err)
	}
	var out []nvml.Device
	for i := range 2 {
		d, err := s.Device(i)
		if err != nil {
			t.Fatal(err)
		}
		uuid, err := d.UUID()
		if err != nil {
			t.Fatal(err)
		}
		out, uuids = append(out, d), append(uuids, uuid)
	}
	return f, out[0], out[1], uuids
}

func TestCalls_Answer_StrikesMatchingCallsUntilClear(t *testing.T) {
	f, a, b, uuids := devices(t)
	f.Answer(nvml.Timeout, nvmltest.Of("nvmlDeviceGetMinorNumber", uuids[0]))
	if _, err := a.MinorNumber(); !errors.Is(err, nvml.Timeout) {
		t.Errorf("the call that matches: %v", err)
	}
	if _, err := a.Name(); err != nil {
		t.Errorf("another function: %v", err)
	}
	if _, err := b.MinorNumber(); err != nil {
		t.Errorf("another GPU: %v", err)
	}
	want := []nvmltest.Call{
		{Query: "nvmlDeviceGetMinorNumber", GPU: uuids[0]}, {Query: "nvmlDeviceGetName", GPU: uuids[0]},
		{Query: "nvmlDeviceGetMinorNumber", GPU: uuids[1]},
	}
	if got := f.Clear(); !slices.Equal(got, want) {
		t.Errorf("calls %v", got)
	}
	if _, err := a.MinorNumber(); err != nil {
		t.Errorf("after Clear: %v", err)
	}
}

func TestCalls_ChangeAfterEffect_ChangesAndFails(t *testing.T) {
	f, a, _, _ := devices(t)
	f.Answer(nvml.Unknown, nvmltest.Nth(1)) // The first call is the one before the effect.
	if err := a.SetMIGMode(true); !errors.Is(err, nvml.Unknown) {
		t.Errorf("the change returned %v", err)
	}
	f.Clear()
	if on, _, err := a.MIGMode(); err != nil || !on {
		t.Errorf("the mode is on: %v, %v", on, err)
	}
}

func TestCalls_Hang_WaitsForClearAndLeavesOtherGPUs(t *testing.T) {
	f, a, b, uuids := devices(t)
	hung := f.Hang(nvmltest.On(uuids[0]))
	answered := make(chan error, 1)
	go func() { _, err := a.Name(); answered <- err }()
	<-hung
	if _, err := b.Name(); err != nil {
		t.Errorf("another GPU: %v", err)
	}
	select {
	case err := <-answered:
		t.Errorf("the call answered while it hangs: %v", err)
	default:
	}
	f.Clear()
	if err := <-answered; err != nil {
		t.Errorf("released: %v", err)
	}
}

func TestCodes_Function_ListsDocumentedAndCommonCodes(t *testing.T) {
	got := nvmltest.Codes(t, "nvmlDeviceGetMigMode")
	for _, want := range []nvml.Code{nvml.NotSupported, nvml.Timeout, nvml.ResetRequired, 25, nvml.Unknown} {
		if !slices.Contains(got, want) {
			t.Errorf("%v lacks %v", got, want)
		}
	}
	if slices.Contains(got, nvml.InUse) {
		t.Errorf("%v has a code that nvml.h does not list", got)
	}
}
