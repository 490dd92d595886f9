// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpu-dra-driver/internal/nvml"
)

// codes maps nvml.h's names, without NVML_ERROR_, to return codes.
var codes = map[string]nvml.Code{
	"UNINITIALIZED": nvml.Uninitialized, "INVALID_ARGUMENT": nvml.InvalidArgument, "NOT_SUPPORTED": nvml.NotSupported,
	"NO_PERMISSION": nvml.NoPermission, "NOT_FOUND": nvml.NotFound, "INSUFFICIENT_SIZE": nvml.InsufficientSize,
	"DRIVER_NOT_LOADED": nvml.DriverNotLoaded, "TIMEOUT": nvml.Timeout, "LIBRARY_NOT_FOUND": nvml.LibraryNotFound,
	"FUNCTION_NOT_FOUND": nvml.FunctionNotFound, "GPU_IS_LOST": nvml.GPUIsLost, "RESET_REQUIRED": nvml.ResetRequired,
	"OPERATING_SYSTEM": nvml.OperatingSystem, "LIB_RM_VERSION_MISMATCH": nvml.LibRMMismatch, "IN_USE": nvml.InUse,
	"NOT_READY": nvml.NotReady, "GPU_NOT_FOUND": nvml.GPUNotFound, "UNKNOWN": nvml.Unknown,
}

func parseCode(s string) (nvml.Code, error) {
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n < 1000 {
		return nvml.Code(n), nil
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "NVML_ERROR_")
	if c, ok := codes[name]; ok {
		return c, nil
	}
	var names []string
	for name := range codes {
		names = append(names, name)
	}
	slices.Sort(names)
	return 0, fmt.Errorf("--code %q: a number, or one of %s", s, strings.Join(names, ", "))
}
