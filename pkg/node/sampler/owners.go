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

// Names parses the names of metadata files. *store.Store implements it.
type Names interface {
	ParseMetadataName(file string) (uid string, i int, ok bool)
}

// Mounts recognizes mounts of the metadata files in a directory, by the file system and the path in it.
//
// A tenant can mount a file with any name, such as one of an emptyDir volume on the same file system. It cannot choose
// another claim's path in the file system: only the driver writes the directory, and only the runtime mounts its files.
type Mounts struct {
	filesystem, root string
	names            Names
}

// NewMounts returns the Mounts of a directory without symbolic links. own are the mounts of this process.
func NewMounts(own []procfs.Mount, directory string, names Names) (*Mounts, error) {
	var at procfs.Mount
	for _, m := range own {
		// The last mount of a path hides the earlier ones.
		if below(m.Point, directory) && len(m.Point) >= len(at.Point) {
			at = m
		}
	}
	inside, err := filepath.Rel(at.Point, directory)
	return &Mounts{at.Filesystem, filepath.Join(at.Root, inside), names}, err
}

// file returns the metadata file that is mounted; false for another mount.
func (m *Mounts) file(is procfs.Mount) (File, bool) {
	if is.Filesystem != m.filesystem || filepath.Dir(is.Root) != m.root {
		return File{}, false
	}
	uid, i, ok := m.names.ParseMetadataName(filepath.Base(is.Root))
	return File{uid, i}, ok
}

func below(parent, path string) bool {
	inside, err := filepath.Rel(parent, path)
	return err == nil && filepath.IsLocal(inside)
}

// owners finds the metadata files that processes have mounted. It reads the mounts of a process once.
type owners struct {
	root   string
	mounts *Mounts

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
	if o.mounts == nil {
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
		if f, ok := o.mounts.file(m); ok {
			files[f] = true
		}
	}
	out := owned{start: start, files: []File{}}
	for f := range maps.Keys(files) {
		out.files = append(out.files, f)
	}
	return out, nil
}
