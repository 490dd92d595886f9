// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
)

// Code is NVML's code of a failed query (nvmlReturn_t). It is an error, so errors.Is finds it inside an *Error.
type Code int

// The codes that the driver uses, with the values of nvml.h.
const (
	Uninitialized         Code = 1
	InvalidArgument       Code = 2
	NotSupported          Code = 3
	NoPermission          Code = 4
	NotFound              Code = 6
	InsufficientSize      Code = 7
	DriverNotLoaded       Code = 9
	Timeout               Code = 10
	LibraryNotFound       Code = 12
	FunctionNotFound      Code = 13
	GPUIsLost             Code = 15
	ResetRequired         Code = 16
	OperatingSystem       Code = 17
	LibRMMismatch         Code = 18
	InUse                 Code = 19
	InsufficientResources Code = 23
	NotReady              Code = 27
	GPUNotFound           Code = 28
	Unknown               Code = 999
)

var codeTexts = map[Code]string{
	Uninitialized: "uninitialized", InvalidArgument: "invalid argument", NotSupported: "not supported",
	NoPermission: "insufficient permissions", NotFound: "not found", InsufficientSize: "insufficient size",
	DriverNotLoaded: "driver not loaded", Timeout: "timeout", LibraryNotFound: "library not found",
	FunctionNotFound: "function not found in this driver", GPUIsLost: "GPU is lost", ResetRequired: "GPU requires reset",
	OperatingSystem: "blocked by the operating system", LibRMMismatch: "driver and library version mismatch",
	InUse: "in use by another client", InsufficientResources: "insufficient resources", NotReady: "not ready",
	GPUNotFound: "no GPU found", Unknown: "unknown error",
}

func (c Code) Error() string {
	if s, ok := codeTexts[c]; ok {
		return s
	}
	return fmt.Sprintf("NVML error %d", int(c))
}

type Error struct {
	// Query is NVML's own name of the query, "nvmlDeviceGetMemoryInfo_v2".
	Query string
	Code  Code
}

func (e *Error) Error() string { return e.Query + ": " + e.Code.Error() }

func (e *Error) Unwrap() error { return e.Code }

// ErrReplaced means that the NVML library on disk is not the one this process loaded, because of a driver upgrade.
// The dynamic linker keeps the first library for the life of the process, so only a restart helps.
var ErrReplaced = errors.New("the driver was replaced since this process loaded it; the process must start again")

// Unavailable reports that err means "this GPU or driver does not have it", as opposed to a failure: the caller
// leaves the attribute out, without an error.
func Unavailable(err error) bool {
	return errors.Is(err, NotSupported) || errors.Is(err, FunctionNotFound)
}
