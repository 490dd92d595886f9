// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package simtest

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/sim/engine"
)

// TestLibrary_EveryCall_ReturnsDocumentedCode calls each method of go-nvml with zero arguments, on each kind of handle. A call
// that crashes ends the test. "Unknown error" would be a panic that the library recovered from.
func TestLibrary_EveryCall_ReturnsDocumentedCode(t *testing.T) {
	r := Root(t, "hgx-h100", nil)
	Change(t, r, func(s *engine.State) {
		g := &s.GPUs[0]
		if code := s.SetMIGMode(g, true); code != 0 {
			t.Fatal(code)
		}
		i, code := s.CreateInstance(g, 9, 0)
		if code != 0 {
			t.Fatal(code)
		}
		if _, code := s.CreateCompute(g, i.ID, 0); code != 0 {
			t.Fatal(code)
		}
	})
	lib := initialised(t, r)
	loadCUDA(t, r)
	have := symbols(t, r.Library)
	device := func(index int) gonvml.Device {
		d, ret := lib.DeviceGetHandleByIndex(index)
		ok(t, "DeviceGetHandleByIndex", ret)
		return d
	}
	partitioned := device(0)
	mig, ret := partitioned.GetMigDeviceHandleByIndex(0)
	ok(t, "GetMigDeviceHandleByIndex", ret)
	instance, ret := partitioned.GetGpuInstanceById(1)
	ok(t, "GetGpuInstanceById", ret)
	compute, ret := instance.GetComputeInstanceById(0)
	ok(t, "GetComputeInstanceById", ret)

	for _, h := range []struct {
		kind, prefix string
		handle       any
		least        int // of the calls succeed
	}{
		{"library", "nvml", lib, 6},
		{"whole GPU", "nvmlDevice", device(1), 90},
		{"GPU in MIG mode", "nvmlDevice", partitioned, 85},
		{"MIG device", "nvmlDevice", mig, 15},
		{"GPU instance", "nvmlGpuInstance", instance, 5},
		{"compute instance", "nvmlComputeInstance", compute, 1}, // Its destruction ends the MIG device.
	} {
		kind, succeeded := h.kind, 0
		v := reflect.ValueOf(h.handle)
		for n := range v.NumMethod() {
			name := v.Type().Method(n).Name
			if h.prefix == "nvml" && !strings.HasPrefix(name, "System") && !strings.HasPrefix(name, "Unit") {
				continue // Those of a handle, and those that end the session.
			}
			ret, called := zeroCall(v.Method(n), device(1))
			switch query := version(have, h.prefix+name); {
			case !called:
			case ret == gonvml.SUCCESS:
				succeeded++
			case !nvmltest.Documents(query):
				if ret > gonvml.ERROR_INVALID_STATE {
					t.Errorf("%s: %s answers %v", kind, name, ret)
				}
			case ret == gonvml.ERROR_UNKNOWN || !slices.Contains(nvmltest.Codes(t, query), nvml.Code(ret)) && ret != gonvml.ERROR_NOT_SUPPORTED &&
				ret != gonvml.ERROR_INVALID_ARGUMENT:
				t.Errorf("%s: %s answers %v, which nvml.h does not list", kind, query, ret)
			}
		}
		if succeeded < h.least {
			t.Errorf("%s: %d calls succeeded, want at least %d", kind, succeeded, h.least)
		}
	}
}

// version returns the name of the newest version of a function, or "".
func version(have []string, name string) string {
	found := ""
	for _, symbol := range have {
		if symbol == name || strings.HasPrefix(symbol, name+"_v") {
			found = max(found, symbol)
		}
	}
	return found
}

// zeroCall calls a method of go-nvml. called is false if the method has no return code, or needs an argument that has no
// zero value.
func zeroCall(method reflect.Value, other gonvml.Device) (ret gonvml.Return, called bool) {
	defer func() {
		if recover() != nil {
			called = false // go-nvml cannot convert the argument.
		}
	}()
	var args []reflect.Value
	for n := range method.Type().NumIn() {
		in := method.Type().In(n)
		switch {
		case in == reflect.TypeFor[gonvml.Device]():
			args = append(args, reflect.ValueOf(other))
		case in.Kind() == reflect.Pointer:
			args = append(args, reflect.New(in.Elem()))
		case in.Kind() == reflect.Interface, in.Kind() == reflect.Slice:
			return 0, false
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	out := method.Call(args)
	if len(out) == 0 || out[len(out)-1].Type() != reflect.TypeFor[gonvml.Return]() {
		return 0, false
	}
	return out[len(out)-1].Interface().(gonvml.Return), true
}
