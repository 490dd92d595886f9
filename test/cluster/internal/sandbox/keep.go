// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// handles are files and directories that stay open while their names are mounted over.
type handles []handle

type handle struct {
	path string
	fd   int
}

func open(paths []string) (handles, error) {
	var hs handles
	for _, p := range paths {
		fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			hs.close()
			return nil, fmt.Errorf("open %s: %w", p, err)
		}
		hs = append(hs, handle{p, fd})
	}
	return hs, nil
}

func (hs handles) close() {
	for _, h := range hs {
		unix.Close(h.fd)
	}
}

// restore mounts each held file at its name again if the name now leads to another file or none.
func (hs handles) restore() error {
	for _, h := range hs {
		var held, found unix.Stat_t
		if err := unix.Fstat(h.fd, &held); err != nil {
			return err
		}
		if err := unix.Stat(h.path, &found); err == nil && held.Dev == found.Dev && held.Ino == found.Ino {
			continue
		}
		if held.Mode&unix.S_IFMT == unix.S_IFDIR {
			if err := os.MkdirAll(h.path, 0o755); err != nil {
				return err
			}
		} else if _, err := os.Stat(h.path); err != nil {
			if err := os.MkdirAll(filepath.Dir(h.path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(h.path, nil, 0o600); err != nil {
				return err
			}
		}
		if err := bind(fmt.Sprintf("/proc/self/fd/%d", h.fd), h.path); err != nil {
			return err
		}
	}
	return nil
}

// mountpoints lists the mount points of the calling process's namespace in the order of mounting.
func mountpoints() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountpoints(string(b)), nil
}

// Unmounted returns an error if this mount namespace has a mount point below dir. A removal of dir would then remove the
// machine's own files: a node has directories of the machine mounted there, in its own mount namespace.
func Unmounted(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	points, err := mountpoints()
	if err != nil {
		return err
	}
	for _, p := range points {
		if strings.HasPrefix(p, dir+"/") {
			return fmt.Errorf("%s is still a mount point: unmount it, then remove %s", p, dir)
		}
	}
	return nil
}

func parseMountpoints(mountinfo string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var points []string
	for line := range strings.Lines(mountinfo) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, unescape.Replace(fields[4]))
		}
	}
	return points
}
