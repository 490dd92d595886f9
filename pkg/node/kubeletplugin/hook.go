// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/driverprogram"
	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/claimerror"
)

// labelHook labels the operations that install the hook.
const labelHook host.Label = "hook.install"

// HookName is the file name of the hook in the plugin's data directory.
const HookName = "nvidia-cdi-hook"

// hookLimit limits a run of the hook that prints its version.
const hookLimit = 20 * time.Second

// CheckHook runs the installed hook once, and looks for the program that the hook runs on the node. The plugin sees the
// node's directory with the flags of its mount, so the hook runs for the container runtime if it runs here.
func CheckHook(ctx context.Context, dataDir string, node *driverroot.Root) error {
	ctx, cancel := context.WithTimeout(ctx, hookLimit)
	defer cancel()
	target := filepath.Join(dataDir, HookName)
	cmd := exec.CommandContext(ctx, target, "--version")
	cmd.WaitDelay = time.Second
	var out driverprogram.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err == nil {
		if err = node.CheckLDConfig(); err != nil {
			return &claimerror.Error{
				Reason: claimerror.HostFailure, Attempt: "run the CDI hook", Cause: err,
				Remedy: "containers with a GPU cannot start on this node: install ldconfig of glibc at /sbin/ldconfig",
			}
		}
		return nil
	}
	failure := &claimerror.Error{
		Reason:  claimerror.HostFailure,
		Attempt: "run the CDI hook",
		Cause:   fmt.Errorf("%w: %s", err, strings.TrimSpace(out.String())),
		Remedy: "containers with a GPU cannot start on this node: run " + target +
			" --version on it, and check that the plugin's image is for its architecture",
	}
	var fs unix.Statfs_t
	if unix.Statfs(dataDir, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0 {
		failure.Cause = fmt.Errorf("%s is on a file system that is mounted with noexec: %w", dataDir, err)
		failure.Remedy = "containers with a GPU cannot start on this node: mount it without noexec, or give the " +
			"kubelet's plugins another directory (chart value kubeletPlugin.kubeletPluginsDirectoryPath)"
	}
	return failure
}

// InstallHook copies a hook from this image to the data directory, because the container runtime runs it on the node.
// One rename replaces the file, so a starting container runs either the old or the new version. If the image has no
// hook, an installed one stays.
func InstallHook(ctx context.Context, h *host.Host, source, dataDir, name string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("install the hook %s: %w", name, err)
		}
	}()
	lock, err := h.Lock(ctx, filepath.Join(dataDir, name+".lock"), 0)
	if err != nil {
		return err
	}
	defer lock.Release()
	target := filepath.Join(dataDir, name)
	have, haveErr := os.ReadFile(target)
	want, err := os.ReadFile(source)
	switch {
	case err == nil && len(want) == 0:
		err = fmt.Errorf("%s is empty", source)
	case haveErr == nil && (errors.Is(err, fs.ErrNotExist) || err == nil && bytes.Equal(have, want)):
		return nil
	}
	if err != nil {
		return err
	}
	return h.WriteDurable(labelHook, target, want, 0o755)
}
