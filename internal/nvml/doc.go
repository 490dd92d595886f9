// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nvml is the interface to NVIDIA's management library, in the driver's own types.
//
// Each method is one NVML query and fails as that query fails: with an *Error that names the query and has NVML's
// return code. Test it with errors.Is(err, NotSupported). Queries are not combined, because a GPU that cannot answer
// one query can often answer the others.
//
// Traps. A session keeps /dev/nvidiactl open, and then the driver cannot be unloaded: close a session soon. NVML's
// state belongs to the process, so sessions are counted and the last Close shuts the library down. A call of a
// function that an older driver lacks ends the process; the real binding looks each newer function up first and
// returns FunctionNotFound.
package nvml
