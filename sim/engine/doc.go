// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine is a simulated machine with GPUs: its state, its changes, and NVML's answers.
//
// State is the machine, a plain value. Its methods change it as an operator, a fault or a reboot does. Engine keeps
// it in a file under a root directory, protects it with a lock across processes, and writes it atomically. Session
// answers as an initialised NVML does; both implementations of NVML, the in-process fake and libnvidia-ml.so.1, are
// thin layers over it.
//
// Traps. As with the real library, a session enumerates GPUs once, when it is initialised. Only later sessions see a
// GPU that is added; a removed GPU returns GPUIsLost. A *State from Engine.State is shared and must not be changed;
// Engine.Update passes a copy. The package is linked into libnvidia-ml.so.1: no imports beyond encoding/json.
package engine
