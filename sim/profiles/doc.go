// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package profiles describes the machines the simulator can be: boards, where they sit, and the driver that runs them.
//
// A profile is a JSON file under data, and every fact in it is covered by an entry of its sources.
//
// Trap. The package is linked into libnvidia-ml.so.1, which shares the memory budget of the process that loads it: it
// imports nothing beyond encoding/json.
package profiles
