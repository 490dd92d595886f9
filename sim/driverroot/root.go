// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
)

// stateFile is the engine's file in its directory.
const stateFile = "state.json"

// Root is a machine in a directory.
type Root struct {
	// Path is absolute.
	Path string
	*engine.Engine
}

// Options configures Up.
type Options struct {
	Profile string
	// Library and SMI are the files to install: see BuildLibrary and BuildSMI.
	Library, SMI string
	// GPUs is the number of filled slots; 0 fills all.
	GPUs int
	// Seed varies UUIDs and serial numbers.
	Seed string
	// DriverVersion replaces that of the profile, if it is set.
	DriverVersion string
	// Bare makes a machine without device nodes and nvidia_uvm, until nvidia-modprobe runs there.
	Bare bool
	// Without lists NVML functions that the installed library lacks.
	Without []string
	// Origin is stored in the machine: see engine.State.
	Origin string
}

// Open returns the machine in a directory, or engine.ErrNoMachine.
func Open(dir string) (*Root, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := at(abs)
	if _, err := os.Lstat(filepath.Join(abs, engine.Dir)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s: make one with gpusim up --profile hgx-h100 --root %s", engine.ErrNoMachine, abs, dir)
	}
	return r, nil
}

func at(abs string) *Root {
	r := &Root{Path: abs}
	r.Engine = engine.Open(abs, r.sync)
	return r
}

func (r *Root) sync(s *engine.State) error {
	entries, err := Plan(s)
	if err != nil {
		return err
	}
	if boot, err := os.ReadFile(filepath.Join(r.Path, BootIDFile)); err == nil && string(boot) != s.BootID+"\n" {
		if err := removeAll(r.Path, []string{KernelLog}); err != nil {
			return err
		}
	}
	if err := converge(r.Path, entries); err != nil {
		return err
	}
	return writeKernelLog(r.Path, s)
}

// Up makes a machine in an empty or new directory. After an error it removes its files.
func Up(dir string, o Options) (*Root, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	state, files, err := o.contents()
	if err != nil {
		return nil, err
	}
	if err := claim(abs); err != nil {
		return nil, err
	}
	return create(abs, state, files)
}

// Replace makes another machine in the directory of one. Directories of both stay the same ones, because containers can have
// them mounted. After an error in between, no machine is left.
func Replace(dir string, o Options) (*Root, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if st, err := os.Lstat(filepath.Join(abs, engine.Dir)); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("%w in %s: nothing was replaced", engine.ErrNoMachine, abs)
	}
	state, files, err := o.contents()
	if err != nil {
		return nil, err
	}
	entries, err := Plan(state)
	if err != nil {
		return nil, err
	}
	stay := map[string]bool{rootItself: true, engine.Dir: true}
	for _, e := range withParents(entries) {
		stay[e.Path] = e.Kind == Dir
	}
	made, err := readManifest(abs)
	if err != nil {
		return nil, err
	}
	// The state goes first: without it, NVML has no driver, as between two boards. The lock stays, because others can hold it,
	// and so do the events, in which others have positions.
	if err := removeAll(abs, []string{path.Join(engine.Dir, stateFile), path.Join(engine.Dir, stateFile+".tmp")}); err != nil {
		return nil, err
	}
	if err := removeAll(abs, slices.DeleteFunc(slices.Clone(made), func(p string) bool { return stay[p] })); err != nil {
		return nil, err
	}
	return create(abs, state, files)
}

// Refresh installs the library and the programs again where they differ, and keeps the machine.
func (r *Root) Refresh(o Options) error {
	s, err := r.State()
	if err != nil {
		return err
	}
	files, err := o.files(s.Profile.Driver.Version)
	if err != nil {
		return err
	}
	return install(r.Path, files)
}

// contents returns the first state and the files to install.
func (o Options) contents() (*engine.State, map[string][]byte, error) {
	profile, err := profiles.Load(o.Profile)
	if err != nil {
		return nil, nil, err
	}
	if o.DriverVersion != "" {
		profile.Driver.Version = o.DriverVersion
		if err := profile.Validate(); err != nil {
			return nil, nil, err
		}
	}
	state, err := engine.New(profile, o.Seed, o.GPUs)
	if err != nil {
		return nil, nil, err
	}
	state.AbsentSymbols, state.Origin = o.Without, o.Origin
	state.Bare, state.UVMMissing, state.NodesMissing = o.Bare, o.Bare, o.Bare
	files, err := o.files(profile.Driver.Version)
	return state, files, err
}

// files returns the files to install, by path in the root.
func (o Options) files(driverVersion string) (map[string][]byte, error) {
	library, err := readLibrary(o.Library, o.Without)
	if err != nil {
		return nil, err
	}
	smi, err := readSMI(o.SMI)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		filepath.Join(LibDir, "libnvidia-ml.so."+driverVersion): library,
		filepath.Join(BinDir, "nvidia-smi"):                     smi,
		filepath.Join(BinDir, mpsProgram):                       smi, // Its name selects the program.
		filepath.Join(BinDir, ModprobeProgram):                  smi,
	}, nil
}

// create makes a machine in a directory that claim marked. After an error it removes all files.
func create(abs string, state *engine.State, files map[string][]byte) (*Root, error) {
	r := at(abs)
	err := install(abs, files)
	if err == nil {
		err = r.Create(state)
	}
	if err != nil {
		return nil, errors.Join(err, Down(abs))
	}
	return r, nil
}

// claim marks a directory as the simulator's.
func claim(abs string) error {
	entries, err := os.ReadDir(abs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("making a machine in %s: %w", abs, err)
	}
	if len(entries) > 0 {
		if _, err := os.Lstat(filepath.Join(abs, engine.Dir)); err == nil {
			return fmt.Errorf("%s already holds a simulated machine: remove it with gpusim down --root %s", abs, abs)
		}
		return fmt.Errorf("%s is not empty: give a directory that is empty or does not exist", abs)
	}
	if err := os.MkdirAll(filepath.Join(abs, engine.Dir), 0o755); err != nil {
		return err
	}
	manifest := []string{engine.Dir, path.Dir(engine.Dir), "var"}
	if entries == nil {
		manifest = append(manifest, rootItself)
	}
	return writeManifest(abs, manifest)
}

// install writes files, and keeps all others.
func install(abs string, files map[string][]byte) error {
	var entries []Entry
	for p, content := range files {
		entries = append(entries, Entry{Path: p, Kind: File, Mode: 0o755, Content: content})
	}
	entries = withParents(entries)
	all, err := readManifest(abs)
	if err != nil {
		return err
	}
	for _, e := range entries {
		all = append(all, e.Path)
	}
	if err := writeManifest(abs, all); err != nil {
		return err
	}
	for _, e := range entries {
		if err := e.make(filepath.Join(abs, e.Path)); err != nil {
			return err
		}
	}
	return nil
}

// Down removes the files of Up and of later changes, and keeps all others.
func Down(dir string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if st, err := os.Lstat(filepath.Join(abs, engine.Dir)); err != nil || !st.IsDir() {
		return fmt.Errorf("%w in %s: nothing was removed", engine.ErrNoMachine, abs)
	}
	made, err := readManifest(abs)
	if err != nil {
		return err
	}
	own := []string{stateFile, stateFile + ".tmp", "lock", "events"}
	for _, name := range own {
		made = append(made, filepath.Join(engine.Dir, name))
	}
	if err := removeAll(abs, made); err != nil {
		return fmt.Errorf("removing the machine in %s: %w", abs, err)
	}
	// The manifest is removed last: until then another Down can finish.
	last := []string{manifestFile, engine.Dir, path.Dir(engine.Dir), "var"}
	if slices.Contains(made, rootItself) {
		last = append(last, rootItself)
	}
	for _, p := range last {
		if err := removeAll(abs, []string{p}); err != nil {
			return fmt.Errorf("removing the machine in %s: %w", abs, err)
		}
	}
	if left, _ := os.ReadDir(abs); len(left) > 0 {
		return fmt.Errorf("the machine is removed; %s holds %d things the simulator did not make, and they were left", abs, len(left))
	}
	return nil
}
