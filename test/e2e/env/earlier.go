// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// earlier is the commit or tag of the oldest release whose files today's must read, and which must read today's. It wrote the
// goldens of form 1.
const earlier = "2b072178ebf91eff68cd984657263e533cacc962"

// programs are the built programs, with their build flags.
var programs = map[string][]string{
	"dra-kubelet-plugin": {"-tags", "netgo,osusergo,grpcnotrace", "-ldflags", "-s -w -extldflags=-Wl,-z,lazy"},
	"mps-supervisor":     {"-ldflags", "-s -w"},
}

// EarlierPrograms returns the directory with the plugin and the supervisor of the earlier release. It builds them once, into
// the cache that the one-machine Kubernetes uses too.
func (e *Env) EarlierPrograms(ctx context.Context) (string, error) {
	cache := os.Getenv("GPU_DRA_CACHE")
	if cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		cache = filepath.Join(base, "gpu-dra-driver")
	}
	dir := filepath.Join(cache, "earlier-"+earlier)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	temporary, err := os.MkdirTemp(cache, ".earlier-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	source, built := filepath.Join(temporary, "source"), filepath.Join(temporary, "built")
	if err := os.Mkdir(source, 0o755); err != nil {
		return "", err
	}
	if err := runIn(ctx, e.Tree, "git", "cat-file", "-e", earlier+"^{commit}"); err != nil {
		// A clone without history.
		if fetchErr := runIn(ctx, e.Tree, "git", "fetch", "--depth=1", "origin", earlier); fetchErr != nil {
			return "", fmt.Errorf("the clone lacks the earlier release, so clone it with its history: %w", errors.Join(err, fetchErr))
		}
	}
	archive := filepath.Join(temporary, "source.tar")
	if err := runIn(ctx, e.Tree, "git", "archive", "--output", archive, earlier); err != nil {
		return "", err
	}
	if err := runIn(ctx, source, "tar", "-xf", archive); err != nil {
		return "", err
	}
	for name, flags := range programs {
		args := append([]string{"build", "-trimpath", "-o", filepath.Join(built, name)}, flags...)
		if err := runIn(ctx, source, "go", append(args, "./cmd/"+name)...); err != nil {
			return "", err
		}
	}
	// A rename makes the directory appear complete. Another process may have been faster.
	if err := os.Rename(built, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr != nil {
			return "", err
		}
	}
	return dir, nil
}

func runIn(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
}
