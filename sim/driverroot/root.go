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
func Up(dir string, o Options) (_ *Root, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	profile, err := profiles.Load(o.Profile)
	if err != nil {
		return nil, err
	}
	if o.DriverVersion != "" {
		profile.Driver.Version = o.DriverVersion
		if err := profile.Validate(); err != nil {
			return nil, err
		}
	}
	state, err := engine.New(profile, o.Seed, o.GPUs)
	if err != nil {
		return nil, err
	}
	state.AbsentSymbols = o.Without
	state.Bare, state.UVMMissing, state.NodesMissing = o.Bare, o.Bare, o.Bare
	library, err := readLibrary(o.Library, o.Without)
	if err != nil {
		return nil, err
	}
	smi, err := readSMI(o.SMI)
	if err != nil {
		return nil, err
	}
	if err := claim(abs); err != nil {
		return nil, err
	}
	r := at(abs)
	defer func() {
		if err != nil {
			err = errors.Join(err, Down(abs))
		}
	}()
	installed := map[string][]byte{
		filepath.Join(LibDir, "libnvidia-ml.so."+profile.Driver.Version): library,
		filepath.Join(BinDir, "nvidia-smi"):                              smi,
		filepath.Join(BinDir, mpsProgram):                                smi, // Its name selects the program.
		filepath.Join(BinDir, ModprobeProgram):                           smi,
	}
	if err := install(abs, installed); err != nil {
		return nil, err
	}
	if err := r.Create(state); err != nil {
		return nil, err
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

func install(abs string, files map[string][]byte) error {
	var entries []Entry
	for p, content := range files {
		entries = append(entries, Entry{Path: p, Kind: File, Mode: 0o755, Content: content})
	}
	entries = withParents(entries)
	return converge(abs, entries)
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
	own := []string{"state.json", "state.json.tmp", "lock", "events"}
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
