// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import (
	"reflect"
	"testing"
	"time"

	"gpu-dra-driver/internal/nvml"
)

// measurements reads each GPU twice.
func measurements(t *testing.T, s nvml.Session) {
	each(s, func(i int, d nvml.Device) {
		if u, err := d.VideoUtilization(); err == nil &&
			(u.Encoder < 0 || u.Encoder > 100 || u.Decoder < 0 || u.Decoder > 100) {
			t.Errorf("GPU %d: video utilization %+v, want percents", i, u)
		}
		if u, err := d.Utilization(); err == nil && (u.GPU < 0 || u.GPU > 100 || u.Memory < 0 || u.Memory > 100) {
			t.Errorf("GPU %d: utilization %+v, want percents", i, u)
		}
		processes, err := d.ProcessMemory()
		for n, p := range processes {
			if n > 0 && !before(processes[n-1].Process, p.Process) || p.Bytes < nvml.NotReported {
				t.Errorf("GPU %d: process memory %+v, %v; want each process once, in order", i, processes, err)
			}
		}
		counters(t, i, d)
		if i == 0 {
			performance(t, i, d) // It takes time, and all GPUs of a machine are alike.
		}
	})
}

func counters(t *testing.T, i int, d nvml.Device) {
	earlier, err := d.Counters()
	if err != nil {
		return // Checked with all queries.
	}
	later, err := d.Counters()
	if err != nil {
		t.Errorf("GPU %d: a second reading of counters: %v", i, err)
		return
	}
	for n := range reflect.TypeFor[nvml.Counters]().NumField() {
		field := reflect.TypeFor[nvml.Counters]().Field(n).Name
		a, b := reflect.ValueOf(earlier).Field(n).Int(), reflect.ValueOf(later).Field(n).Int()
		if a < nvml.NotReported || (a == nvml.NotReported) != (b == nvml.NotReported) || b < a &&
			field != "MemoryTemperature" {
			t.Errorf("GPU %d: %s is %d, then %d", i, field, a, b)
		}
	}
}

func performance(t *testing.T, i int, d nvml.Device) {
	earlier, err := d.Performance(-1)
	if err != nil {
		return // Checked with all queries.
	}
	defer earlier.Free()
	time.Sleep(120 * time.Millisecond) // The shortest distance that NVML accepts is 100 ms.
	later, err := d.Performance(-1)
	if err != nil {
		t.Errorf("GPU %d: a second sample of performance: %v", i, err)
		return
	}
	defer later.Free()
	got, err := later.Since(earlier)
	if err != nil {
		t.Errorf("GPU %d: performance between two samples: %v", i, err)
	}
	for n := range reflect.TypeFor[nvml.Performance]().NumField() {
		if v := reflect.ValueOf(got).Field(n).Float(); v != nvml.NotReported && (v < 0 || v > 1) {
			t.Errorf("GPU %d: performance %+v, want ratios", i, got)
		}
	}
	if _, err := later.Since(nil); err == nil {
		t.Errorf("GPU %d: performance since no sample succeeded", i)
	}
}
