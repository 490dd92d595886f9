// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// tunables are the settings of the kernel that a kubelet changes. They are in no namespace, so a node in a container
// changes the machine's.
var tunables = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

const (
	tunablesFile = "tunables.json"
	procSys      = "/proc/sys"
)

// saveTunables writes the values of before the run into the directory.
func saveTunables(dir string) error {
	values := map[string]string{}
	for _, name := range tunables {
		b, err := os.ReadFile(filepath.Join(procSys, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		values[name] = string(b)
	}
	b, err := json.Marshal(values)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, tunablesFile), b, 0o600)
}

// restoreTunables writes those that differ now.
func restoreTunables(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, tunablesFile))
	if err != nil {
		return err
	}
	var values map[string]string
	if err := json.Unmarshal(b, &values); err != nil {
		return err
	}
	var errs []error
	for name, was := range values {
		path := filepath.Join(procSys, name)
		now, err := os.ReadFile(path)
		if err == nil && string(now) != was {
			err = os.WriteFile(path, []byte(was), 0)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
