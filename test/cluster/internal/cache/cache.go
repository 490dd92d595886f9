// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package cache stores the built programs: one directory per recipe, built once.
//
// A complete entry appears by a rename, so an existing directory can be used. Builders of the same entry, in any
// process, take turns by a file lock, and the second one finds the first one's result.
package cache

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/test/cluster/internal/gobuild"
	"gpu-dra-driver/test/cluster/internal/recipe"
)

// Dir is the cache's directory: $GPU_DRA_CACHE, else gpu-dra-driver in the user's cache directory.
func Dir() (string, error) {
	if dir := os.Getenv("GPU_DRA_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache directory for built programs (set GPU_DRA_CACHE to choose one): %w", err)
	}
	return filepath.Join(base, "gpu-dra-driver"), nil
}

// Cache builds missing programs in Dir and reports that on Progress.
type Cache struct {
	Dir      string
	Progress io.Writer
}

// Components lists the recipes of a node that runs the Kubernetes version. Reading the version's go.mod
// needs the Go proxy the first time.
func (c Cache) Components(ctx context.Context, version string) ([]recipe.Component, error) {
	goMod, err := c.upstreamGoMod(ctx, version)
	if err != nil {
		return nil, err
	}
	k, err := recipe.Kubernetes(version, goMod)
	if err != nil {
		return nil, err
	}
	return append(recipe.Node(), k), nil
}

// Kind lists the recipes of kind and of the programs that its node needs beside Components.
func (c Cache) Kind(ctx context.Context, version string) ([]recipe.Component, error) {
	goMod, err := c.upstreamGoMod(ctx, version)
	if err != nil {
		return nil, err
	}
	return recipe.Kind(version, goMod)
}

// upstreamGoMod is the go.mod of k8s.io/kubernetes, stored in the cache: the module cache may be cleaned while its
// programs are still valid.
func (c Cache) upstreamGoMod(ctx context.Context, version string) (string, error) {
	v, err := recipe.ParseVersion(version)
	if err != nil {
		return "", err
	}
	kept := filepath.Join(c.Dir, "kubernetes-"+v.String()+".mod")
	if b, err := os.ReadFile(kept); err == nil {
		return string(b), nil
	}
	cmd := goCommand(ctx, os.TempDir(), "mod", "download", "-json", recipe.KubernetesModule+"@"+v.String())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var info struct{ GoMod, Error string }
	if jsonErr := json.Unmarshal(out, &info); err == nil {
		err = jsonErr
	}
	if err != nil || info.GoMod == "" {
		return "", fmt.Errorf("download %s %s from the Go proxy: %w %s%s", recipe.KubernetesModule, v, err, info.Error, stderr.String())
	}
	b, err := os.ReadFile(info.GoMod)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.CreateTemp(c.Dir, ".mod-")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(b)
	if err := errors.Join(err, tmp.Close(), os.Rename(tmp.Name(), kept)); err != nil {
		return "", err
	}
	return string(b), nil
}

// Bin returns the directory of a component's programs, and whether it is there: those that Build made, else those of Download.
func (c Cache) Bin(component recipe.Component) (string, bool) {
	built := filepath.Join(c.Dir, component.Key(), "bin")
	for _, dir := range []string{built, filepath.Join(c.Dir, downloaded(component), "bin")} {
		if _, err := os.Stat(dir); err == nil {
			return dir, true
		}
	}
	return built, false
}

// Build builds the missing components in order, and returns each one's program directory.
func (c Cache) Build(ctx context.Context, components []recipe.Component) ([]string, error) {
	start := time.Now()
	bins := make([]string, len(components))
	for i, component := range components {
		bin, ok := c.Bin(component)
		if !ok {
			label := fmt.Sprintf("[%d/%d] %s %s", i+1, len(components), component.Name, component.Version)
			if err := c.buildOne(ctx, component, label, start); err != nil {
				return nil, err
			}
		}
		bins[i] = bin
	}
	return bins, nil
}

func (c Cache) buildOne(ctx context.Context, component recipe.Component, label string, start time.Time) error {
	_, err := c.Entry(ctx, component.Key(), label, start, func(dir string) error {
		if err := compile(ctx, component, dir, label, c.Progress); err != nil {
			return fmt.Errorf("build %s %s: %w", component.Name, component.Version, err)
		}
		return nil
	})
	return err
}

// Entry returns the directory of the entry key. If it is missing, make fills a directory, which becomes the entry.
// A complete entry has a directory bin. label begins the lines of progress, with the time since start.
func (c Cache) Entry(ctx context.Context, key, label string, start time.Time, make func(dir string) error) (string, error) {
	entry := filepath.Join(c.Dir, key)
	complete := func() bool {
		_, err := os.Stat(filepath.Join(entry, "bin"))
		return err == nil
	}
	if complete() {
		return entry, nil
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := c.lock(ctx, key, label)
	if err != nil {
		return "", err
	}
	defer unlock()
	if complete() {
		return entry, nil
	}
	fmt.Fprintf(c.Progress, "%s: begins\n", label)
	tmp := filepath.Join(c.Dir, ".building-"+key)
	// A builder that was killed leaves its directory; the lock keeps other builders out of it.
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := make(tmp); err != nil {
		return "", err
	}
	// An entry without bin is not complete.
	if err := errors.Join(os.RemoveAll(entry), os.Rename(tmp, entry)); err != nil {
		return "", err
	}
	fmt.Fprintf(c.Progress, "%s: done, %s elapsed\n", label, time.Since(start).Round(time.Second))
	return entry, nil
}

func compile(ctx context.Context, component recipe.Component, dir, label string, progress io.Writer) error {
	src, bin := filepath.Join(dir, "src"), filepath.Join(dir, "bin")
	for _, d := range []string{src, bin} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	files := map[string]string{"go.mod": component.GoMod}
	for name, text := range component.Sources {
		files[name] = text
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	cgo := "CGO_ENABLED=0"
	if component.CGO {
		cgo = "CGO_ENABLED=1"
	}
	b := gobuild.Build{
		Label: label, Target: component.Target(bin), Flags: component.Flags(), Packages: component.Packages,
		Command: func(args ...string) *exec.Cmd {
			cmd := goCommand(ctx, src, args...)
			cmd.Env = append(cmd.Env, cgo)
			return cmd
		},
	}
	if err := b.Run(progress); err != nil {
		return err
	}
	for _, name := range component.Binaries() {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return fmt.Errorf("the go command succeeded without making %s: %w", name, err)
		}
	}
	return nil
}

// goCommand runs the go command without the settings of the caller's own module or workspace.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GO111MODULE=on", "GOOS=", "GOARCH=", "PWD="+dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// lock takes the entry's file lock, and reports if it must wait. The lock file stays: unlinking it would let two
// builders hold locks on different files of the same name.
func (c Cache) lock(ctx context.Context, key, label string) (func(), error) {
	f, err := os.OpenFile(filepath.Join(c.Dir, "."+key+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		fmt.Fprintf(c.Progress, "%s: waiting for another process that builds it\n", label)
		done := make(chan error, 1)
		go func() { done <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
		select {
		case err = <-done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil
}
