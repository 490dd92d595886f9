// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
)

func object(kind, rest string) []byte {
	return []byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `",` + rest + `}`)
}

func TestDecode_Sharing_FillsInDefaults(t *testing.T) {
	ten, two, yes, half := Quantity{resource.MustParse("10Gi")}, Quantity{resource.MustParse("2Gi")}, true, 50
	for in, want := range map[string]*Sharing{
		`"sharing":{"strategy":"TimeSlicing"}`:                                                                {Strategy: StrategyTimeSlicing, TimeSlicing: &TimeSlicingConfig{Interval: IntervalDefault}},
		`"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}`:                                         {Strategy: StrategyTimeSlicing, TimeSlicing: &TimeSlicingConfig{Interval: IntervalDefault}},
		`"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`:                        {Strategy: StrategyTimeSlicing, TimeSlicing: &TimeSlicingConfig{Interval: IntervalLong}},
		`"sharing":{"strategy":"MPS"}`:                                                                        {Strategy: StrategyMPS, MPS: &MPSConfig{}},
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"10Gi","multiUser":true}}`: {Strategy: StrategyMPS, MPS: &MPSConfig{DefaultPinnedDeviceMemoryLimit: &ten, MultiUser: &yes}},
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,"defaultPerDevicePinnedMemoryLimit":{"0":"2Gi"}}}`: {
			Strategy: StrategyMPS, MPS: &MPSConfig{DefaultActiveThreadPercentage: &half, DefaultPerDevicePinnedMemoryLimit: map[string]Quantity{"0": two}},
		},
		`"sharing":null`: nil,
	} {
		config, err := Decode(object(KindGPUConfig, in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if diff := cmp.Diff(want, config.Sharing); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
	config, err := Decode(object(KindMIGDeviceConfig, `"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}`))
	if err != nil || config.Kind != KindMIGDeviceConfig || config.Sharing.TimeSlicing == nil {
		t.Errorf("%+v, %v", config, err)
	}
}

func TestDecode_InvalidSharing_NamesTheField(t *testing.T) {
	for in, want := range map[string]string{
		`"sharing":{}`:                                                                                         "sharing.strategy: missing",
		`"sharing":{"strategy":"Mps"}`:                                                                         `sharing.strategy: "Mps"`,
		`"sharing":{"strategy":5}`:                                                                             "sharing.strategy",
		`"sharing":{"strategy":"MPS","timeSlicingConfig":{}}`:                                                  "sharing.timeSlicingConfig: is for",
		`"sharing":{"strategy":"TimeSlicing","mpsConfig":{}}`:                                                  "sharing.mpsConfig: is for",
		`"sharing":{"strategy":"TimeSlicing","interval":"Long"}`:                                               `unknown field "interval"`,
		`"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Longer"}}`:                       `interval: "Longer"`,
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":101}}`:                       "defaultActiveThreadPercentage: 101",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":-1}}`:                        "defaultActiveThreadPercentage: -1",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":"50"}}`:                      "defaultActiveThreadPercentage",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"1Ki"}}`:                    "less than 1Mi",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"-1Gi"}}`:                   "less than 1Mi",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"900Ti"}}`:                  "defaultPinnedDeviceMemoryLimit: 900Ti is more than any device has",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"99999999999999999999Gi"}}`: "is more than any device has",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"1e30"}}}`:          "[0]: 1e30 is more than any device has",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"-99999999999999999999"}}`:  "less than 1Mi",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"lots"}}`:                   "",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"first":"1Gi"}}}`:       "[first]: the key",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"1"}}}`:             "[0]: 1 is less",
		// Billions of digits would use up the memory of the plugin and of the webhook.
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"1e100000"}}`:             "at most two digits",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"1E-100000"}}}`:   "at most two digits",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":1.5e+100000}}`:            "at most two digits",
		`"sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"1234567890123456e100"}}`: "at most two digits",
	} {
		if _, err := Decode(object(KindGPUConfig, in)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "v1beta1.") {
			t.Errorf("%s: %v, want %q in it", in, err, want)
		}
	}
	if _, err := Decode(object(KindMIGDeviceConfig, `"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Short"}}`)); err == nil {
		t.Error("a MIG device has a time slice of its own")
	}
}

func TestLimitFor_SeveralDevices_PrefersUUIDThenPosition(t *testing.T) {
	devices := []Device{{UUID: "GPU-a", Index: 0, MemoryBytes: 40 << 30}, {UUID: "GPU-b", Index: 1, MemoryBytes: 80 << 30}}
	decode := func(limits string) *Sharing {
		t.Helper()
		c, err := Decode(object(KindGPUConfig, `"sharing":{"strategy":"MPS","mpsConfig":{`+limits+`}}`))
		if err != nil {
			t.Fatal(err)
		}
		return c.Sharing
	}
	s := decode(`"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"1":"20Gi","GPU-b":"30Gi"}`)
	for n, want := range []uint64{10 << 30, 30 << 30} {
		if err := s.Check(devices[n], devices); err != nil {
			t.Error(err)
		}
		if got, ok := s.MPS.LimitFor(devices[n]); !ok || got != want {
			t.Errorf("the limit of device %d is %d, want %d", n, got, want)
		}
	}
	if _, ok := decode("").MPS.LimitFor(devices[0]); ok {
		t.Error("there is a limit where none was given")
	}
	if err := decode(`"defaultPerDevicePinnedMemoryLimit":{"2":"1Gi"}`).Check(devices[0], devices); err == nil || !strings.Contains(err.Error(), "no such device") {
		t.Error(err)
	}
	big := decode(`"defaultPinnedDeviceMemoryLimit":"41Gi"`)
	if err := big.Check(devices[0], devices); err == nil || !strings.Contains(err.Error(), "more than the device has") {
		t.Error(err)
	}
	if err := big.Check(devices[1], devices); err != nil {
		t.Error(err)
	}
}

func FuzzSharing(f *testing.F) {
	f.Add(`{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":"1Gi"}}}`)
	f.Add(`{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)
	f.Fuzz(func(t *testing.T, sharing string) {
		config, err := Decode(object(KindGPUConfig, `"sharing":`+sharing))
		if err != nil || config.Sharing == nil {
			return
		}
		_ = config.Sharing.Check(Device{UUID: "GPU-a", MemoryBytes: 1 << 30}, nil)
		text, err := json.Marshal(config.Sharing)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(object(KindGPUConfig, `"sharing":`+string(text)))
		if err != nil {
			t.Fatalf("%s becomes %s: %v", sharing, text, err)
		}
		if a, b := again.Sharing, config.Sharing; a.Strategy != b.Strategy || (a.MPS == nil) != (b.MPS == nil) {
			t.Errorf("%s becomes %s", sharing, text)
		}
	})
}
