// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command runc-without-seccomp is runc for containers with a seccomp profile, which every sandbox has. runc filters
// system calls only if it is linked with libseccomp, a C library that a build from Go modules lacks, and otherwise
// rejects a profile. This program removes the profile from a bundle before it runs runc: pods run without seccomp.
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

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "runc-without-seccomp:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if bundle, ok := bundle(args[1:]); ok {
		if err := strip(filepath.Join(bundle, "config.json")); err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{runc}, args[1:]...), os.Environ())
}

// bundle finds the bundle of a command that makes a container.
func bundle(args []string) (string, bool) {
	if !slices.Contains(args, "create") && !slices.Contains(args, "run") {
		return "", false
	}
	for i, a := range args {
		if value, ok := strings.CutPrefix(a, "--bundle="); ok {
			return value, true
		}
		if (a == "--bundle" || a == "-b") && i+1 < len(args) {
			return args[i+1], true
		}
	}
	return "", false
}

// strip rewrites a runtime configuration without its seccomp profile and keeps everything else.
func strip(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config, linux map[string]json.RawMessage
	if err := json.Unmarshal(b, &config); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if config["linux"] == nil {
		return nil
	}
	if err := json.Unmarshal(config["linux"], &linux); err != nil {
		return fmt.Errorf("read linux in %s: %w", path, err)
	}
	if linux["seccomp"] == nil {
		return nil
	}
	delete(linux, "seccomp")
	if config["linux"], err = json.Marshal(linux); err != nil {
		return err
	}
	if b, err = json.Marshal(config); err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
