// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"strings"
	"testing"
)

func TestDecode_MinimalObject_IsAccepted(t *testing.T) {
	config, err := Decode([]byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`))
	if err != nil || config.Kind != KindGPUConfig {
		t.Fatalf("Decode = %+v, %v", config, err)
	}
}

func TestDecode_InvalidObject_NamesTheField(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"no object":             {`[]`, "not a JSON object"},
		"nothing":               {``, "not a JSON object"},
		"null":                  {`null`, "apiVersion: missing"},
		"no kind":               {`{"apiVersion":"resource.nvidia.com/v1beta1"}`, "kind: missing"},
		"kind is a number":      {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":3}`, "kind: 3 is not a string"},
		"other group":           {`{"apiVersion":"gpu.example.com/v1","kind":"GpuConfig"}`, `apiVersion: "gpu.example.com/v1"`},
		"unknown kind":          {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfigs"}`, `kind: "GpuConfigs" is not known, use GpuConfig`},
		"unknown field":         {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharring":{}}`, `unknown field "sharring"`},
		"field in another case": {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","Sharing":{}}`, `unknown field "Sharing"`},
		"field given twice":     {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":null,"sharing":null}`, `duplicate field "sharing"`},
		"nested unknown field":  {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"limit":1}}}`, `GpuConfig: sharing.mpsConfig: unknown field "limit"`},
		"two objects":           {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}{}`, "not a JSON object: invalid character '{' after top-level value"},
		"10 KiB of noise":       {strings.Repeat("x", 10*1024), "not a JSON object"},
		"more than the limit":   {strings.Repeat(" ", 10*1024+1), "the API allows 10240"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(c.in))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Decode: %v, want %q in it", err, c.want)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("the error has %d bytes, too long for an Event", len(err.Error()))
			}
		})
	}
}

func TestDecode_KindOfAnotherDriver_IsUnsupported(t *testing.T) {
	for _, kind := range notServed {
		_, err := Decode([]byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `"}`))
		if err == nil || !strings.Contains(err.Error(), kind+" is not supported by this driver") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`))
	f.Add([]byte(`{"kind":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := Decode(data)
		if (err == nil) != (config.Kind != "") {
			t.Errorf("Decode(%q) = %+v, %v", data, config, err)
		}
	})
}
