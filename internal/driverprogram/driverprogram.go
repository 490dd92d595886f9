// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package driverprogram finds programs in the driver root and limits the size of their kept output.
package driverprogram

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// Find returns the path of a program inside the driver root, for a process with that root directory. It follows links
// within the root, as that process does. The error for a missing program ends with remedy.
func Find(root, name, remedy string) (string, error) {
	for _, dir := range []string{"usr/bin", "bin", "usr/local/bin", "opt/bin"} {
		path := filepath.Join("/", dir, name)
		file, err := securejoin.SecureJoin(root, path)
		if err != nil {
			continue
		}
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not in the driver root; %s", name, remedy)
}

// Output keeps the first 64 KiB of its input. It can be read while a process still writes.
type Output struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buffer.Write(p[:min(len(p), 64<<10-o.buffer.Len())])
	return len(p), nil
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.String()
}
