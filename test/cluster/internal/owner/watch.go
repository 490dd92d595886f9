// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package owner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"gpu-dra-driver/test/cluster/internal/sandbox"
	"gpu-dra-driver/test/cluster/internal/spec"
)

// keepLogs is a file whose presence makes Clean keep the logs.
const keepLogs = "keep-logs"

// cleanTimeout limits the wait for killed processes to leave their cgroups.
const cleanTimeout = 30 * time.Second

// KeepLogs makes the cluster's end keep its logs.
func KeepLogs(dir string) error {
	return os.WriteFile(filepath.Join(dir, keepLogs), nil, 0o600)
}

// Watch waits for the end of standard input and cleans up after the cluster in dir. It inherits the cluster's lock,
// which is free only when it has finished.
func Watch(dir string) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	s, err := spec.Load(dir)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return Clean(s)
}

// Clean removes the files and cgroups of a cluster without living processes.
func Clean(s spec.Spec) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	if err := sandbox.RemoveCgroup(ctx, s.Cgroup()); err != nil {
		return err
	}
	if err := sandbox.Unmounted(s.Dir); err != nil {
		return fmt.Errorf("remove the cluster's files: %w", err)
	}
	if _, err := os.Stat(s.Path(keepLogs)); err != nil {
		return os.RemoveAll(s.Dir)
	}
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != "logs" {
			errs = append(errs, os.RemoveAll(s.Path(e.Name())))
		}
	}
	return errors.Join(errs...)
}
