// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine is a simulated machine with GPUs: its state, what changes it, and what NVML says of it.
//
// State is the machine, a plain value with methods that change it as an operator, a fault or a reboot would. Engine
// keeps it in a file under a root directory, guarded by a lock across processes, written atomically. Session answers as
// an initialised NVML does; both implementations of NVML, the in-process fake and libnvidia-ml.so.1, are thin layers over it.
//
// Traps. As with the real library, a session enumerates once, when it is initialised: a GPU that is added later is seen
// by the next session, one that is removed answers GPUIsLost. A *State got from Engine.State is shared and must not be
// changed; Engine.Update hands out a copy. The package is linked into libnvidia-ml.so.1: no imports beyond encoding/json.
package engine
