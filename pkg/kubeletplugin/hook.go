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

	"gpu-dra-driver/internal/host"
)

// The effects of installing the hook.
const LabelHook host.Label = "hook.install"

// HookName is the hook's file in the plugin's data directory.
const HookName = "nvidia-cdi-hook"

// InstallHook copies the CDI hook from this image to the data directory, where the container runtime, which runs on the
// node, can run it. The file is replaced in one rename: a container that starts now runs the old one or the new one,
// never half of one. Where the image has none, one that is installed stays.
func InstallHook(ctx context.Context, h *host.Host, source, dataDir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("install the CDI hook: %w", err)
		}
	}()
	lock, err := h.Lock(ctx, filepath.Join(dataDir, HookName+".lock"), 0)
	if err != nil {
		return err
	}
	defer lock.Release()
	target := filepath.Join(dataDir, HookName)
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
	return h.WriteDurable(LabelHook, target, want, 0o755)
}
