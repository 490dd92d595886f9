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
	"path/filepath"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/host"
)

// The effects of installing the hook.
const LabelHook host.Label = "hook.install"

// HookName is the hook's file in the plugin's data directory.
const HookName = "nvidia-cdi-hook"

// InstallHook copies the CDI hook from this image to the data directory, where the container runtime, which runs on the
// node, can run it. The file is replaced in one rename: a container that starts now runs the old one or the new one,
// never half of one. Where the image has none, one that is installed stays.
func InstallHook(ctx context.Context, h *host.Host, source, dataDir string) error {
	lock, err := h.Lock(ctx, filepath.Join(dataDir, HookName+".lock"), 0)
	if err != nil {
		return fmt.Errorf("install the CDI hook: %w", err)
	}
	defer lock.Release()
	target := filepath.Join(dataDir, HookName)
	want, err := mapped(source)
	if errors.Is(err, fs.ErrNotExist) {
		if _, there := os.Stat(target); there == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("install the CDI hook: %w", err)
	}
	defer unmap(want)
	if have, err := mapped(target); err == nil {
		same := bytes.Equal(have, want)
		unmap(have)
		if same {
			return nil
		}
	}
	if err := h.WriteDurable(LabelHook, target, want, 0o755); err != nil {
		return fmt.Errorf("install the CDI hook: %w", err)
	}
	return nil
}

// mapped gives a file's bytes without keeping its megabytes in the heap.
func mapped(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() == 0 {
		return nil, fmt.Errorf("%s is empty", path)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return data, nil
}

func unmap(data []byte) { _ = unix.Munmap(data) } // Fails for a wrong range only.
