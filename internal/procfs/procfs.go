// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package procfs parses files of /proc, and reads them without trust in the processes that they describe.
package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// mountsLimit limits the bytes of a mountinfo file. A process can have a hundred thousand mounts. Those of a
// container's runtime come first.
const mountsLimit = 1 << 20

// ErrEnded means that a process does not exist any more.
var ErrEnded = errors.New("the process has ended")

type Mount struct {
	// Filesystem is the device number of the file system.
	Filesystem string
	// Root is the mounted path in the file system. A file that was removed or replaced keeps its path.
	Root string
	// Point is the path below the process's root directory.
	Point string
}

// parseMounts parses a mountinfo file. It skips lines that it cannot parse, and the last line if it is incomplete.
func parseMounts(data []byte) (mounts []Mount) {
	for {
		line, rest, complete := bytes.Cut(data, []byte("\n"))
		if !complete {
			return mounts
		}
		data = rest
		// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
		fields := bytes.SplitN(line, []byte(" "), 6)
		if len(fields) < 6 || !bytes.HasPrefix(fields[3], []byte("/")) || !bytes.HasPrefix(fields[4], []byte("/")) {
			continue
		}
		mounts = append(mounts, Mount{
			Filesystem: string(fields[2]), Root: strings.TrimSuffix(unescape(fields[3]), "//deleted"),
			Point: unescape(fields[4]),
		})
	}
}

// unescape replaces the octal numbers by which the kernel writes spaces, tabs, line ends and backslashes.
func unescape(field []byte) string {
	if bytes.IndexByte(field, '\\') < 0 {
		return string(field)
	}
	out := make([]byte, 0, len(field))
	for i := 0; i < len(field); i++ {
		if field[i] == '\\' && i+3 < len(field) {
			if n, err := strconv.ParseUint(string(field[i+1:i+4]), 8, 8); err == nil {
				out = append(out, byte(n))
				i += 3
				continue
			}
		}
		out = append(out, field[i])
	}
	return string(out)
}

// parseStat returns the fields of a stat file from the state on, field 3. There are none for a process that has ended,
// and for other files.
func parseStat(data []byte) [][]byte {
	// The name in parentheses, field 2, can contain anything.
	at := bytes.LastIndexByte(data, ')')
	if fields := bytes.Fields(data[at+1:]); at >= 0 && len(fields) >= 2 && !bytes.ContainsAny(fields[0], "ZXx") {
		return fields
	}
	return nil
}

// parseStart returns the start time in a stat file, field 22, in clock ticks since the boot.
func parseStart(data []byte) (start uint64, ok bool) {
	fields := parseStat(data)
	if len(fields) < 20 {
		return 0, false
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	return start, err == nil
}

// Start returns the start time of a process, which distinguishes it from others with its PID. root is a /proc.
func Start(root string, pid uint32) (uint64, error) {
	data, err := read(root, pid, "stat", 4096)
	if err != nil {
		return 0, err
	}
	start, ok := parseStart(data)
	if !ok {
		return 0, ErrEnded
	}
	return start, nil
}

// Children returns the PIDs of the children of a process that have not ended. It reads the stat file of each process:
// the kernel's own list can lack a child while another one ends.
func Children(root string, pid int) (children []int, err error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("list the children of process %d: %w", pid, err)
	}
	for _, e := range entries {
		child, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil {
			continue
		}
		data, err := read(root, uint32(child), "stat", 4096)
		switch {
		case errors.Is(err, ErrEnded):
			continue
		case err != nil:
			return nil, err
		}
		if fields := parseStat(data); fields != nil && string(fields[1]) == strconv.Itoa(pid) { // field 4
			children = append(children, int(child))
		}
	}
	return children, nil
}

// Mounts returns the mounts of a process that are below its root directory, or the first ones of very many.
func Mounts(root string, pid uint32) ([]Mount, error) {
	data, err := read(root, pid, "mountinfo", mountsLimit)
	if err != nil {
		return nil, err
	}
	return parseMounts(data), nil
}

// parseCgroup returns the path of the cgroup of version 2 in a cgroup file, "" if there is none.
func parseCgroup(data []byte) string {
	for line := range bytes.Lines(data) {
		// Cgroups of version 1 have another number, and names of controllers between the colons.
		if path, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte("0::")); ok &&
			bytes.HasPrefix(path, []byte("/")) {
			return string(path)
		}
	}
	return ""
}

// Cgroup returns the path of a process's cgroup of version 2, below the root of the reader's cgroups, or "".
func Cgroup(root string, pid uint32) (string, error) {
	data, err := read(root, pid, "cgroup", mountsLimit)
	return parseCgroup(data), err
}

func read(root string, pid uint32, name string, limit int64) ([]byte, error) {
	file, err := os.Open(filepath.Join(root, strconv.FormatUint(uint64(pid), 10), name))
	var data []byte
	if err == nil {
		defer func() { _ = file.Close() }()
		data, err = io.ReadAll(io.LimitReader(file, limit))
	}
	switch {
	// The kernel refuses the mounts of a process that is ending with EINVAL.
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH), errors.Is(err, syscall.EINVAL):
		return nil, ErrEnded
	case err != nil:
		return nil, fmt.Errorf("read the %s of process %d: %w", name, pid, err)
	}
	return data, nil
}
