// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"gpu-dra-driver/sim/engine"
)

// image is a machine at a moment without processes. The machines that it creates continue from there, in the same
// directory: one at a time.
type image struct {
	env   *Env
	files []imageFile
}

type imageFile struct {
	path  string
	mode  fs.FileMode
	inode uint64
	data  []byte
}

// image returns the machine of now. Only regular files and directories can be in it.
func (e *Env) image() *image {
	e.T.Helper()
	i := &image{env: e.clone()}
	e.Must(filepath.WalkDir(e.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		f := imageFile{path: path, mode: info.Mode(), inode: info.Sys().(*syscall.Stat_t).Ino}
		switch {
		case f.mode.IsRegular():
			f.data, err = os.ReadFile(path)
		case !f.mode.IsDir():
			err = fmt.Errorf("%s is neither a file nor a directory", path)
		}
		i.files = append(i.files, f)
		return err
	}))
	return i
}

// machine creates the machine again, with a file of several names as one file.
func (i *image) machine() *Env {
	e := i.env.clone()
	e.T.Helper()
	e.Must(os.RemoveAll(e.Dir))
	names := map[uint64]string{}
	for _, f := range i.files {
		first := names[f.inode]
		switch {
		case f.mode.IsDir():
			e.Must(os.Mkdir(f.path, f.mode.Perm()))
		case first != "":
			e.Must(os.Link(first, f.path))
		default:
			names[f.inode] = f.path
			e.Must(os.WriteFile(f.path, f.data, f.mode.Perm()))
		}
	}
	return e
}

// clone returns a machine that shares only the files. The fault hooks of its NVML are not set.
func (e *Env) clone() *Env {
	c := *e
	c.Claims = maps.Clone(e.Claims)
	for uid, claim := range c.Claims {
		c.Claims[uid] = claim.DeepCopy()
	}
	c.Snapshot.GPUs, c.Reports = slices.Clone(e.Snapshot.GPUs), slices.Clone(e.Reports)
	if s := e.Sim; s != nil {
		machine, err := engine.InMemory(s.State())
		e.Must(err)
		c.Sim = &Simulator{
			env: &c, machine: machine, MIG: s.MIG, Wrap: s.Wrap, External: maps.Clone(s.External),
			ExternalModes: maps.Clone(s.ExternalModes), daemons: maps.Clone(s.daemons),
		}
	}
	return &c
}

// state returns a hash of everything that a new process finds on the machine: files, simulated GPUs and daemons, and
// claims. Two machines of one scenario with the same state continue equally.
func (i *image) state() string {
	e, h := i.env, sha256.New()
	for _, f := range i.files {
		path := f.path[len(e.Dir):]
		if f.mode.IsDir() {
			fmt.Fprintf(h, "%s\n", path)
			continue
		}
		fmt.Fprintf(h, "%s %d\n%s", path, len(f.data), bytes.ReplaceAll(f.data, []byte(e.Dir), nil))
	}
	memory := []any{e.Claims, e.Snapshot, e.noExternal, fmt.Sprint(e.EditsErr)}
	if e.Sim != nil {
		memory = append(memory, e.Sim.State(), e.Sim.daemons, e.Sim.External, e.Sim.ExternalModes)
	}
	e.Must(json.NewEncoder(h).Encode(memory))
	return string(h.Sum(nil))
}
