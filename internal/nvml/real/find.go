// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package real

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"

	"gpu-dra-driver/internal/nvml"
)

// soname is the name that every driver's NVML can be found under.
const soname = "libnvidia-ml.so.1"

// directories is where drivers put their libraries below the driver root, in the order nvidia-container-toolkit looks.
var directories = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
	"usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/aarch64-linux-gnu/nvidia/current", "usr/lib",
	"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib", "",
}

// Find looks for the NVML library under a driver root. Links are followed as the driver's own machine would: an
// absolute one starts at the root, and none leads out of it. Without a library the error is nvml.LibraryNotFound and
// names the directories.
func Find(driverRoot string) (string, error) {
	for _, dir := range directories {
		path, err := securejoin.SecureJoin(driverRoot, filepath.Join(dir, soname))
		if err != nil {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("look for %s under the driver root %s (in %s): %w", soname, driverRoot,
		strings.Join(directories[:len(directories)-1], ", "), nvml.LibraryNotFound)
}
