// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"gpu-dra-driver/sim/engine"
)

// Kind is the kind of an entry.
type Kind int

// Kinds.
const (
	Dir Kind = iota
	File
	Symlink
	CharDevice
	// Log is a file that is made empty, and that others write.
	Log
	// Installed is a file that Up installs and that changes of the state do not affect.
	Installed
)

// Entry is a file, directory, link or device node in the root.
type Entry struct {
	// Path is relative to the root.
	Path    string
	Kind    Kind
	Mode    fs.FileMode
	Content []byte
	// Target of a symbolic link.
	Target string
	// Major and Minor of a device node.
	Major, Minor uint32
}

// Layout inside a root.
const (
	LibDir  = "usr/lib/x86_64-linux-gnu"
	BinDir  = "usr/bin"
	ProcDir = "proc"
	SysDir  = "sys"
	DevDir  = "dev"
	// BootIDFile holds the boot ID.
	BootIDFile = "proc/sys/kernel/random/boot_id"
	// KernelLog has the XIDs of the present boot in the format of the kernel's /dev/kmsg. It is a file: at its end a reader
	// gets no more, where the kernel's own lets it wait.
	KernelLog = "dev/kmsg"
)

// Device numbers of the driver's nodes. 195 is registered with the kernel; the kernel assigns the others dynamically.
const (
	majorGPU    = 195
	majorUVM    = 510
	majorCaps   = 237
	majorSwitch = 236

	minorControl = 255
	minorModeset = 254
)

// Plan lists the entries of a machine's root, parents before children.
func Plan(s *engine.State) ([]Entry, error) {
	facts, err := firmware(s)
	if err != nil {
		return nil, err
	}
	entries := slices.Concat(libraries(s), facts, devices(s), proc(s), capabilities(s), sysfs(s))
	return withParents(entries), nil
}

func withParents(entries []Entry) []Entry {
	seen := map[string]bool{".": true}
	var out []Entry
	var parents func(string)
	parents = func(p string) {
		if seen[p] {
			return
		}
		parents(path.Dir(p))
		seen[p] = true
		out = append(out, Entry{Path: p, Kind: Dir, Mode: 0o755})
	}
	for _, e := range entries {
		if e.Kind == Dir {
			parents(e.Path)
			continue
		}
		parents(path.Dir(e.Path))
		out = append(out, e)
	}
	return out
}

func file(p, content string) Entry {
	return Entry{Path: p, Kind: File, Mode: 0o644, Content: []byte(content)}
}

// link returns a symbolic link from p to target, both relative to the root. The link is relative to its own
// directory.
func link(p, target string) Entry {
	from, to := strings.Split(p, "/"), strings.Split(target, "/")
	for len(from) > 1 && len(to) > 1 && from[0] == to[0] {
		from, to = from[1:], to[1:]
	}
	return Entry{Path: p, Kind: Symlink, Target: strings.Repeat("../", len(from)-1) + strings.Join(to, "/")}
}

func node(p string, major, minor uint32) Entry {
	return Entry{Path: p, Kind: CharDevice, Mode: 0o666, Major: major, Minor: minor}
}
