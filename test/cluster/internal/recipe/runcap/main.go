// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command runcap is runc on a machine without CAP_SYS_RESOURCE. dockerd gives a privileged container all capabilities,
// and runc cannot give away one that the machine lacks. This program removes it from a bundle, or from the process of
// `exec --process`, before it runs runc.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const missing = "CAP_SYS_RESOURCE"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runcap:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if slices.Contains(args, "create") || slices.Contains(args, "run") {
		if bundle := flag(args, "--bundle", "-b"); bundle != "" {
			if err := strip(filepath.Join(bundle, "config.json"), "process", "capabilities"); err != nil {
				return err
			}
		}
	}
	if slices.Contains(args, "exec") {
		if process := flag(args, "--process", "-p"); process != "" {
			if err := strip(process, "capabilities"); err != nil {
				return err
			}
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ())
}

// flag returns the value of a flag, or "".
func flag(args []string, names ...string) string {
	for i, a := range args {
		name, value, ok := strings.Cut(a, "=")
		if !slices.Contains(names, name) {
			continue
		}
		if ok {
			return value
		}
		if i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// strip removes the capability from the sets of the object at a path of keys in a file, and keeps everything else.
func strip(file string, keys ...string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if b, err = without(b, keys); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return os.WriteFile(file, b, 0o600)
}

func without(b []byte, keys []string) ([]byte, error) {
	if len(keys) == 0 {
		var sets map[string][]string
		if err := json.Unmarshal(b, &sets); err != nil {
			return nil, err
		}
		for name, set := range sets {
			sets[name] = slices.DeleteFunc(set, func(c string) bool { return c == missing })
		}
		return json.Marshal(sets)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(b, &object); err != nil {
		return nil, err
	}
	inner, ok := object[keys[0]]
	if !ok {
		return b, nil
	}
	inner, err := without(inner, keys[1:])
	if err != nil {
		return nil, err
	}
	object[keys[0]] = inner
	return json.Marshal(object)
}
