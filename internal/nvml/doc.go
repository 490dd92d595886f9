// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nvml is the border to NVIDIA's management library, in the driver's own types.
//
// Each method is one NVML query and fails as that query fails: an *Error that names the query and carries NVML's
// return code, tested with errors.Is(err, NotSupported). A GPU that cannot answer one query can often answer the
// others, so nothing is bundled.
//
// Traps. A session keeps /dev/nvidiactl open, and a driver that is held cannot be unloaded: open one, look, close it.
// NVML's state is one per process, so sessions are counted and the last Close shuts the library down. Calling a symbol
// that an older driver lacks ends the process; the real binding looks each newer symbol up first and answers
// FunctionNotFound.
package nvml
