// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package allocators

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "k8s.io/dynamic-resource-allocation"

// minor has the patches of a minor version that the Go module proxy has. To add a patch, append its number to minors. Then write
// its checksums to `testdata`:
//
//	go -C test test ./allocators -run EveryPatch -update
//
// "go list -m -versions" can omit a version that the proxy has. Try the next number with
// "go mod download k8s.io/dynamic-resource-allocation@v0.36.7". For a new minor version add a row.
type minor struct {
	version int
	patches []int
	// base is the file with the requirements of the other modules. Few bases save time, because each is compiled once.
	base string
	// replace is a further directive of go.mod: the module needs an older one than the base has.
	replace string
}

var minors = []minor{
	{34, []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13}, "v0.36.mod", "k8s.io/apiserver => k8s.io/apiserver v0.34.9"},
	{35, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, "v0.37.mod", ""},
	{36, []int{0, 1, 2, 3, 4, 5, 6}, "v0.36.mod", ""},
	{37, []int{0, 1, 2}, "v0.37.mod", ""},
}

func (m minor) module(patch int) string { return fmt.Sprintf("v0.%d.%d", m.version, patch) }

var update = flag.Bool("update", false, "write the checksums of the patches to testdata/go.sum again")

// allocator is the program for one patch, and all patches with the same source.
type allocator struct {
	minor   minor
	patches []int
	path    string
}

func (a allocator) String() string {
	var names []string
	for _, p := range a.patches {
		names = append(names, fmt.Sprintf("1.%d.%d", a.minor.version, p))
	}
	return strings.Join(names, ", ")
}

// everyPatch tests every patch, as make test-all does. Otherwise the newest of each minor version is tested, because the others do not
// change, and the programs for all take minutes to compile.
var everyPatch = os.Getenv("GPU_DRA_PATCHES") == "all"

// allocators builds the programs. Patches whose source is the same share one.
func allocators(t *testing.T) (out []allocator) {
	t.Helper()
	for _, m := range minors {
		sources := map[string]int{} // The index in out.
		patches := m.patches
		if !everyPatch {
			patches = patches[len(patches)-1:]
		}
		for _, patch := range patches {
			source := m.source(t, patch)
			if i, ok := sources[source]; ok {
				out[i].patches = append(out[i].patches, patch)
				continue
			}
			sources[source] = len(out)
			out = append(out, allocator{minor: m, patches: []int{patch}, path: m.build(t, patch)})
		}
	}
	return out
}

// source identifies the code of a patch that the program links.
func (m minor) source(t *testing.T, patch int) string {
	t.Helper()
	out := m.goCommand(t, patch, "mod", "download", "-json", module)
	var info struct{ Dir string }
	if err := json.Unmarshal(out, &info); err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	err := filepath.WalkDir(info.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") ||
			strings.Contains(path, "/kubeletplugin/") || strings.Contains(path, "/allocatortesting/") {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", strings.TrimPrefix(path, info.Dir), len(text), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

var required = regexp.MustCompile(`(?m)^\t` + module + ` v\S+$`)

// files are the program's module for a patch.
func (m minor) files(t *testing.T, patch int) map[string]string {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	base := read(filepath.Join("testdata", m.base))
	if !required.MatchString(base) {
		t.Fatalf("%s does not require %s", m.base, module)
	}
	// The base requires the newest patch, and the go command would select that.
	mod := fmt.Sprintf("%s\nreplace %s => %s %s\n", base, module, module, m.module(patch))
	if m.replace != "" {
		mod += "\nreplace " + m.replace + "\n"
	}
	return map[string]string{"go.mod": mod, "go.sum": read("testdata/go.sum"), "main.go": read("allocate/main.go")}
}

// directory returns a directory with these files, below the cache that the one-machine Kubernetes uses too.
func (m minor) directory(t *testing.T, patch int) string {
	t.Helper()
	cache := os.Getenv("GPU_DRA_CACHE")
	if cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(base, "gpu-dra-driver")
	}
	h, files := sha256.New(), m.files(t, patch)
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		fmt.Fprintf(h, "%s\n%s", name, files[name])
	}
	dir := filepath.Join(cache, "allocators", fmt.Sprintf("%s-%.12x", m.module(patch), h.Sum(nil)))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	// A rename makes the directory appear complete. Another process may have been faster.
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	temporary, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(temporary, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(temporary, dir); err != nil {
		if err := errors.Join(os.RemoveAll(temporary), missing(dir)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func missing(dir string) error {
	_, err := os.Stat(dir)
	return err
}

// goCommand runs the go command in the program's module for a patch.
func (m minor) goCommand(t *testing.T, patch int, args ...string) []byte {
	t.Helper()
	return goCommand(t, m.directory(t, patch), args...)
}

func goCommand(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath -tags=netgo,osusergo,grpcnotrace", "GOWORK=off", "CGO_ENABLED=0", "PWD="+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s in %s: %v\n%s", strings.Join(args, " "), dir, err, stderr.Bytes())
	}
	return out
}

// build returns the program for a patch. The go command leaves an up-to-date program as it is.
func (m minor) build(t *testing.T, patch int) string {
	t.Helper()
	dir := m.directory(t, patch)
	m.goCommand(t, patch, "build", "-mod=readonly", "-o", "allocate", ".")
	return filepath.Join(dir, "allocate")
}

// run returns the results of each scenario.
func (a allocator) run(t *testing.T, in input) (out [][]result) {
	t.Helper()
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), a.path)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(text), &stderr
	answer, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(answer, &out)
	}
	if err != nil {
		t.Fatalf("run the allocator of %s: %v\n%s", a, err, stderr.Bytes())
	}
	return out
}

// updateSums writes the requirements of each base and the checksums of every patch.
func updateSums(t *testing.T) {
	for _, base := range []int{36, 37} {
		i := slices.IndexFunc(minors, func(m minor) bool { return m.version == base })
		version := minors[i].module(slices.Max(minors[i].patches))
		dir := t.TempDir()
		mod := "module allocate\n\ngo 1.26.0\n\nrequire (\n"
		for _, required := range []string{"k8s.io/api", "k8s.io/apimachinery", module} {
			mod += "\t" + required + " " + version + "\n"
		}
		source, err := os.ReadFile("allocate/main.go")
		if err := errors.Join(err, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod+")\n"), 0o644),
			os.WriteFile(filepath.Join(dir, "main.go"), source, 0o644)); err != nil {
			t.Fatal(err)
		}
		goCommand(t, dir, "mod", "tidy")
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err := errors.Join(err, os.WriteFile(filepath.Join("testdata", fmt.Sprintf("v0.%d.mod", base)), text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	sums := map[string]bool{}
	for _, m := range minors {
		for _, patch := range m.patches {
			dir := t.TempDir()
			files := m.files(t, patch)
			files["go.sum"] = ""
			for name, text := range files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			goCommand(t, dir, "list", "-mod=mod", "-deps", ".")
			goCommand(t, dir, "mod", "download", module)
			text, err := os.ReadFile(filepath.Join(dir, "go.sum"))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				sums[line] = true
			}
		}
	}
	var all []string
	for line := range sums {
		all = append(all, line)
	}
	slices.Sort(all)
	if err := os.WriteFile("testdata/go.sum", []byte(strings.Join(all, "")), 0o644); err != nil {
		t.Fatal(err)
	}
}
