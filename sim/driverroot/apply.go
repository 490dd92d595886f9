// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/sim/engine"
)

const manifestFile = engine.Dir + "/manifest"

// rootItself is in the manifest if Up created the root directory too.
const rootItself = "."

// converge creates the entries and removes the earlier entries that are no longer listed. It writes the manifest
// first, so that Down can remove everything after a crash.
func converge(root string, entries []Entry) error {
	before, err := readManifest(root)
	if err != nil {
		return err
	}
	wanted := make([]string, 0, len(entries))
	for _, e := range entries {
		wanted = append(wanted, e.Path)
	}
	if err := writeManifest(root, append(slices.Clone(wanted), before...)); err != nil {
		return err
	}
	have := map[string]bool{}
	if slices.Contains(before, rootItself) {
		wanted = append(wanted, rootItself)
	}
	for _, p := range wanted {
		have[p] = true
	}
	var stale []string
	for _, p := range before {
		if !have[p] {
			stale = append(stale, p)
		}
	}
	if err := removeAll(root, stale); err != nil {
		return err
	}
	for _, e := range entries {
		if err := e.make(filepath.Join(root, e.Path)); err != nil {
			return err
		}
	}
	return writeManifest(root, wanted)
}

func (e Entry) make(at string) error {
	switch e.Kind {
	case Dir:
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case Log:
		f, err := os.OpenFile(at, os.O_WRONLY|os.O_APPEND|os.O_CREATE, e.Mode)
		if err != nil {
			return err
		}
		return f.Close()
	case Symlink:
		if now, err := os.Readlink(at); err == nil && now == e.Target {
			return nil
		}
		return replace(at, func(tmp string) error { return os.Symlink(e.Target, tmp) })
	case File:
		if now, err := os.ReadFile(at); err == nil && bytes.Equal(now, e.Content) {
			return nil
		}
		return replace(at, func(tmp string) error { return os.WriteFile(tmp, e.Content, e.Mode) })
	case CharDevice:
		device := unix.Mkdev(e.Major, e.Minor)
		var st unix.Stat_t
		if unix.Lstat(at, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == device {
			return nil
		}
		return replace(at, func(tmp string) error { return mknod(tmp, at, device, e.Mode) })
	case Installed:
		if _, err := os.Lstat(at); err != nil {
			return fmt.Errorf("%s was removed from the root: make it again with gpusim down and gpusim up", e.Path)
		}
		return nil
	}
	return fmt.Errorf("%s: unknown kind %d", e.Path, e.Kind)
}

func mknod(tmp, at string, device uint64, mode fs.FileMode) error {
	if err := unix.Mknod(tmp, unix.S_IFCHR|uint32(mode.Perm()), int(device)); err != nil {
		if errors.Is(err, syscall.EPERM) {
			return fmt.Errorf("making the device node %s: %w: device nodes need root and CAP_MKNOD: run gpusim as root, in a container with --cap-add MKNOD", at, err)
		}
		return fmt.Errorf("making the device node %s: %w", at, err)
	}
	return os.Chmod(tmp, mode) // regardless of the umask
}

func replace(at string, create func(tmp string) error) error {
	tmp := filepath.Join(filepath.Dir(at), ".gpusim-"+filepath.Base(at))
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := create(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, at); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}

// removeAll removes paths, deepest first, and keeps directories with other content.
func removeAll(root string, paths []string) error {
	paths = slices.Clone(paths)
	slices.SortFunc(paths, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	for _, p := range paths {
		err := os.Remove(filepath.Join(root, p))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

func readManifest(root string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(root, manifestFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, p := range strings.Split(strings.TrimRight(string(b), "\n"), "\n") {
		if p == "" || !filepath.IsLocal(p) {
			return nil, fmt.Errorf("%s names %q, which is not inside the root: refusing to go on", manifestFile, p)
		}
		paths = append(paths, p)
	}
	return paths, nil
}

func writeManifest(root string, paths []string) error {
	slices.Sort(paths)
	paths = slices.Compact(paths)
	content := []byte(strings.Join(paths, "\n") + "\n")
	return replace(filepath.Join(root, manifestFile), func(tmp string) error { return os.WriteFile(tmp, content, 0o644) })
}
