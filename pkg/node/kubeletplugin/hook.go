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

// labelHook labels the operations that install the hook.
const labelHook host.Label = "hook.install"

// HookName is the file name of the hook in the plugin's data directory.
const HookName = "nvidia-cdi-hook"

// InstallHook copies the CDI hook from this image to the data directory, because the container runtime runs it on the
// node. One rename replaces the file, so a starting container runs either the old or the new version. If the image has
// no hook, an installed one stays.
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
	return h.WriteDurable(labelHook, target, want, 0o755)
}
