// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"testing"
)

func TestError_WithCode_NamesQueryAndMatchesCode(t *testing.T) {
	err := fmt.Errorf("GPU 3: %w", &Error{Query: "nvmlDeviceGetUUID", Code: GPUIsLost})
	if !errors.Is(err, GPUIsLost) || errors.Is(err, NotSupported) {
		t.Errorf("%v: wrong code", err)
	}
	if want := "GPU 3: nvmlDeviceGetUUID: GPU is lost"; err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
	if want := "NVML error 4711"; Code(4711).Error() != want {
		t.Errorf("text %q, want %q", Code(4711), want)
	}
}

func TestUnavailable_Failure_IsFalse(t *testing.T) {
	for code, want := range map[Code]bool{
		NotSupported: true, FunctionNotFound: true, GPUIsLost: false, Unknown: false, NoPermission: false,
	} {
		if got := Unavailable(&Error{Query: "q", Code: code}); got != want {
			t.Errorf("Unavailable(%v) = %v, want %v", code, got, want)
		}
	}
	if Unavailable(nil) {
		t.Error("Unavailable(nil) = true")
	}
}

func TestString_Enumerations_PrintNames(t *testing.T) {
	for got, want := range map[fmt.Stringer]string{
		Brand(2): "Tesla", Brand(99): "Unknown", Architecture(8): "Ada Lovelace", Architecture(-1): "Unknown",
		AddressingMode(2): "ATS", ComputeExclusiveProcess: "ExclusiveProcess", ComputeMode(1): "Unknown",
	} {
		if got.String() != want {
			t.Errorf("%#v prints %q, want %q", got, got, want)
		}
	}
}
