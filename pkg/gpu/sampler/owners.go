// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"errors"
	"maps"
	"path/filepath"
	"sync"

	"gpu-dra-driver/internal/procfs"
)

// File identifies a metadata file: a claim's UID and the file's number.
type File struct {
	Claim  string
	Number int
}

// Mounted returns a function that recognizes mounts of the metadata files in a directory, by the file system and the
// path in it. parse parses the names of metadata files. own are the mounts of this process; the directory has no
// symbolic links.
//
// A tenant can mount a file with any name, such as one of an emptyDir volume on the same file system. It cannot choose
// another claim's path in the file system: only the driver writes the directory, and only the runtime mounts its files.
func Mounted(own []procfs.Mount, directory string, parse func(name string) (uid string, i int, ok bool)) func(procfs.Mount) (File, bool) {
	var at procfs.Mount
	for _, m := range own {
		// The last mount of a path hides the earlier ones.
		if below(m.Point, directory) && len(m.Point) >= len(at.Point) {
			at = m
		}
	}
	inside, err := filepath.Rel(at.Point, directory)
	return func(m procfs.Mount) (File, bool) {
		if err != nil || m.Filesystem != at.Filesystem || filepath.Dir(m.Root) != filepath.Join(at.Root, inside) {
			return File{}, false
		}
		uid, i, ok := parse(filepath.Base(m.Root))
		return File{uid, i}, ok
	}
}

func below(parent, path string) bool {
	inside, err := filepath.Rel(parent, path)
	return err == nil && filepath.IsLocal(inside)
}

// owners finds the metadata files that processes have mounted. It reads the mounts of a process once.
type owners struct {
	root    string
	mounted func(procfs.Mount) (File, bool)

	mu sync.Mutex
	// last has the processes of the last reading, now those of this one.
	last, now map[uint32]owned
}

type owned struct {
	start uint64
	files []File
}

// next begins a reading. It forgets the processes that the last one did not have.
func (o *owners) next() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last, o.now = o.now, map[uint32]owned{}
}

var errUnknown = errors.New("the directory of metadata files is unknown")

// files returns the metadata files that a process has mounted; it is not nil. A process that has ended is
// procfs.ErrEnded.
func (o *owners) files(pid uint32) ([]File, error) {
	if o.mounted == nil {
		return nil, errUnknown
	}
	start, err := procfs.Start(o.root, pid)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	known, ok := o.last[pid]
	if again, both := o.now[pid]; both {
		known, ok = again, true
	}
	o.mu.Unlock()
	if !ok || known.start != start {
		if known, err = o.read(pid, start); err != nil {
			return nil, err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.now == nil {
		o.now = map[uint32]owned{}
	}
	o.now[pid] = known
	return known.files, nil
}

func (o *owners) read(pid uint32, start uint64) (owned, error) {
	mounts, err := procfs.Mounts(o.root, pid)
	if err != nil {
		return owned{}, err
	}
	// Another process can have the PID now.
	if again, err := procfs.Start(o.root, pid); err != nil || again != start {
		return owned{}, procfs.ErrEnded
	}
	files := map[File]bool{}
	for _, m := range mounts {
		if f, ok := o.mounted(m); ok {
			files[f] = true
		}
	}
	out := owned{start: start, files: []File{}}
	for f := range maps.Keys(files) {
		out.files = append(out.files, f)
	}
	return out, nil
}
