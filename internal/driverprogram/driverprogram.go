// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package driverprogram finds programs and device nodes of a driver root, and limits the size of programs' kept output.
//
// A driver root is a root file system, or a directory with the driver's programs and libraries alone, such as
// /home/kubernetes/bin/nvidia of GKE. A program of the first kind runs inside of it. A program of the second kind
// lacks its dynamic loader there, and runs with that of this process's own root.
package driverprogram

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// Libraries lists the library directories below a driver root, in the order of nvidia-container-toolkit.
var Libraries = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
	"usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/aarch64-linux-gnu/nvidia/current", "usr/lib",
	"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib", "",
}

// programs lists the directories of programs below a driver root.
var programs = []string{"usr/bin", "bin", "usr/local/bin", "opt/bin", "usr/sbin", "sbin", "usr/local/sbin"}

// Program is a program of a driver root.
type Program struct {
	// Path is its file, for a process with the root directory Root.
	Path string
	// Root is empty for a process that keeps its own root directory.
	Root string
	// LibraryPath is the value of LD_LIBRARY_PATH. It is empty inside of the driver root.
	LibraryPath string
}

// Environ returns the environment of the program: the directories of programs and libraries.
func (p Program) Environ() []string {
	const path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
	if p.Root != "" {
		return []string{path}
	}
	return []string{path + ":" + filepath.Dir(p.Path), "LD_LIBRARY_PATH=" + p.LibraryPath}
}

// Find returns a program of the driver root. It follows links within the root, as a process with that root directory
// does. The error for a missing program ends with remedy.
func Find(root, name, remedy string) (Program, error) {
	path, file, ok := Locate(root, name)
	if !ok {
		return Program{}, fmt.Errorf("%s is not in the driver root %s; %s", name, root, remedy)
	}
	loader, err := interpreter(file)
	if err != nil {
		return Program{}, fmt.Errorf("read %s of the driver root %s: %w", path, root, err)
	}
	if runsInside(root, loader) {
		return Program{Path: path, Root: root}, nil
	}
	if _, err := os.Stat(loader); loader != "" && err != nil {
		return Program{}, fmt.Errorf("%s of the driver root %s needs %s, which is neither in that root nor in this "+
			"container; use this driver's images, which have it, or a driver root that is a whole root file system",
			name, root, loader)
	}
	return Program{Path: file, LibraryPath: libraryPath(root)}, nil
}

// Locate returns the path of a program in the driver root, and its file as this process sees it.
func Locate(root, name string) (path, file string, ok bool) {
	for _, dir := range programs {
		path = filepath.Join("/", dir, name)
		if file, ok = within(root, path); ok {
			return path, file, true
		}
	}
	return "", "", false
}

// UserSpace returns the parent of the library directory that really has a library of the root. It differs from the root
// if the root has links to a driver elsewhere, such as one below /usr/local/nvidia. It is empty for a missing library.
func UserSpace(root, library string) string {
	for _, dir := range Libraries {
		file, ok := within(root, filepath.Join(dir, library))
		if !ok {
			continue
		}
		parent := filepath.Dir(file)
		for _, known := range Libraries { // The longer ones come first.
			if prefix, ok := strings.CutSuffix(parent, "/"+known); ok && known != "" {
				return filepath.Clean("/" + prefix)
			}
		}
	}
	return ""
}

// within returns the regular file at a path of the root, as this process sees it.
func within(root, path string) (string, bool) {
	file, err := securejoin.SecureJoin(root, path)
	if err != nil {
		return "", false
	}
	info, err := os.Stat(file)
	return file, err == nil && info.Mode().IsRegular()
}

// runsInside reports whether the root is a root file system for a program with this loader. A static program has none.
func runsInside(root, loader string) bool {
	if info, err := os.Stat(filepath.Join(root, "dev")); err != nil || !info.IsDir() {
		return false
	}
	_, ok := within(root, loader)
	return ok || loader == ""
}

// interpreter returns the dynamic loader of a program, or the interpreter of a script. It is empty if there is none.
func interpreter(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 256)
	n, _ := io.ReadFull(f, head) // A short file is neither.
	if line, ok := bytes.CutPrefix(head[:n], []byte("#!")); ok {
		line, _, _ = bytes.Cut(line, []byte("\n"))
		fields := strings.Fields(string(line))
		return strings.Join(fields[:min(1, len(fields))], ""), nil
	}
	program, err := elf.NewFile(f)
	if err != nil {
		return "", nil // The kernel reports what it cannot run.
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			path := make([]byte, min(p.Filesz, 4096))
			if _, err := io.ReadFull(p.Open(), path); err != nil {
				return "", fmt.Errorf("read its dynamic loader's name: %w", err)
			}
			return strings.TrimRight(string(path), "\x00"), nil
		}
	}
	return "", nil
}

// libraryPath lists the root's directories with the libraries that programs load.
func libraryPath(root string) string {
	var dirs []string
	for _, dir := range Libraries {
		for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
			if _, ok := within(root, filepath.Join(dir, name)); ok {
				dirs = append(dirs, filepath.Join(root, dir))
				break
			}
		}
	}
	return strings.Join(dirs, ":")
}

// DevRoot returns the directory whose dev/ has the driver's device nodes: the driver root, or / for a driver root
// without them. Then they are in the /dev of this process and of the node. NVIDIA's DRA driver finds it in the same way
// (getDevRoot in cmd/gpu-kubelet-plugin/root.go).
func DevRoot(root string) string {
	if _, err := os.Stat(filepath.Join(root, "dev")); err != nil || !hasNodes(root) && hasNodes("/") {
		return "/"
	}
	return root
}

func hasNodes(root string) bool {
	paths, err := filepath.Glob(filepath.Join(root, "dev", "nvidia*"))
	return err == nil && len(paths) > 0
}

// Output keeps the first 64 KiB of its input. It can be read while a process still writes.
type Output struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buffer.Write(p[:min(len(p), 64<<10-o.buffer.Len())])
	return len(p), nil
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.String()
}
