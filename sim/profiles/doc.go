// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package profiles describes the machines of the simulator: boards, their slots, and their driver.
//
// A profile is a JSON file under data. Its sources cover every fact in it.
//
// Trap. The package is linked into libnvidia-ml.so.1, which shares the memory budget of its process: it imports
// nothing beyond encoding/json.
package profiles
