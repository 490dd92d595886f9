// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const cgoProgram = `package main

// #include <math.h>
// #cgo LDFLAGS: -lm
import "C"

import "fmt"

var version = "unset"

func main() { fmt.Printf("%s %.0f\n", version, float64(C.cbrt(27))) }
`

// toyModule is a module with one program that links the C library.
func toyModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, contents := range map[string]string{
		"go.mod":          "module toy\n\ngo 1.26.0\n",
		"cmd/toy/main.go": cgoProgram,
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(contents), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func toyImage(t *testing.T) (file string, built v1.Image) {
	t.Helper()
	dir := t.TempDir()
	file = filepath.Join(dir, "toy.tar")
	b := builder{root: toyModule(t), version: "v1.2.3", work: filepath.Join(dir, "bin"), progress: io.Discard}
	toy := image{
		name: "toy", title: "toy", user: nonRoot, libs: nvmlLibs,
		binaries: []binary{{pkg: "./cmd/toy", path: "usr/bin/toy", cgo: true, stamp: "main.version"}},
	}
	ref, size, err := b.build(context.Background(), toy, strings.TrimSuffix(file, ".tar"))
	if err != nil {
		t.Fatal(err)
	}
	if ref != "gpu-dra-driver/toy:v1.2.3" || size == 0 {
		t.Errorf("build said %q, %d bytes", ref, size)
	}
	if built, err = tarball.ImageFromPath(file, nil); err != nil {
		t.Fatal(err)
	}
	return file, built
}

// TestBuild_TwoDirectories_SameBytes builds in two directories.
func TestBuild_TwoDirectories_SameBytes(t *testing.T) {
	var sums [2][sha256.Size]byte
	for i := range sums {
		file, _ := toyImage(t)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = sha256.Sum256(data)
	}
	if sums[0] != sums[1] {
		t.Errorf("digests differ: %x and %x", sums[0], sums[1])
	}
}

// TestBuild_Image_RunsByItself runs the program with the image's files only, which proves that the libraries are
// complete.
func TestBuild_Image_RunsByItself(t *testing.T) {
	_, built := toyImage(t)
	if err := validate.Image(built); err != nil {
		t.Fatal(err)
	}
	config, err := built.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != nonRoot || !cmp.Equal(config.Config.Entrypoint, []string{"/usr/bin/toy"}) {
		t.Errorf("config = %+v", config.Config)
	}
	root := unpack(t, built)
	for _, lib := range nvmlLibs {
		if _, err := findLib(os.DirFS(root), lib); err != nil {
			t.Error(err)
		}
	}
	cmd := exec.Command("/usr/bin/toy")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		cmd.Dir = "/"
	} else {
		cmd = exec.Command(filepath.Join(root, "usr/bin/toy"))
	}
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "v1.2.3 3" {
		t.Errorf("it printed %q, %v", out, err)
	}
}

func unpack(t *testing.T, im v1.Image) string {
	t.Helper()
	root := t.TempDir()
	layers, err := im.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range layers {
		r, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for tr := tar.NewReader(r); ; {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			to := filepath.Join(root, h.Name)
			if h.Typeflag == tar.TypeDir {
				err = os.MkdirAll(to, 0o755)
			} else {
				var data []byte
				if data, err = io.ReadAll(tr); err == nil {
					err = os.WriteFile(to, data, os.FileMode(h.Mode))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		r.Close()
	}
	return root
}

func TestSBOM_Image_ListsFilesAndModules(t *testing.T) {
	file, built := toyImage(t)
	list := map[string]component{}
	for _, c := range components(t, strings.TrimSuffix(file, ".tar")+".cdx.json") {
		list[c.Name] = c
	}
	if c := list["toy"]; c.PURL != "pkg:golang/toy@v1.2.3" {
		t.Errorf("the image's own module is %+v", c)
	}
	if c := list["std"]; c.Version != strings.TrimPrefix(runtime.Version(), "go") {
		t.Errorf("the Go library is %+v", c)
	}
	root, files := unpack(t, built), 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		data, err := os.ReadFile(path)
		want := []hash{{"SHA-256", fmt.Sprintf("%x", sha256.Sum256(data))}}
		if diff := cmp.Diff(want, list[strings.TrimPrefix(path, root)].Hashes); diff != "" {
			t.Errorf("%s (-image +list):\n%s", path, diff)
		}
		return err
	})
	if err != nil || files != len(list)-2 {
		t.Errorf("the image has %d files, the list %d parts: %v", files, len(list), err)
	}
}

func TestSBOM_BinaryWithModules_ListsEach(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := sbom("x", "v1", []entry{{name: "self", source: self}})
	if err != nil {
		t.Fatal(err)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || len(info.Deps) == 0 {
		t.Fatal("this binary has no modules")
	}
	for _, m := range info.Deps {
		if purl := `"pkg:golang/` + m.Path + "@" + m.Version + `"`; m.Replace == nil && !bytes.Contains(data, []byte(purl)) {
			t.Errorf("no %s in %s", purl, data)
		}
	}
	if _, err := sbom("x", "v1", []entry{{name: "no-binary", source: "doc.go"}}); err == nil {
		t.Error("a file that is no Go binary was taken")
	}
}

func components(t *testing.T, file string) []component {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Format     string `json:"bomFormat"`
		Components []component
	}
	if err := json.Unmarshal(data, &list); err != nil || list.Format != "CycloneDX" {
		t.Fatalf("%s: %q, %v", file, list.Format, err)
	}
	return list.Components
}

func TestTarLayer_Entries_SortedAndChecked(t *testing.T) {
	data, err := tarLayer([]entry{
		{name: "usr/bin/b", mode: 0o755, data: []byte("b")},
		{name: "etc/a", mode: 0o644, data: []byte("a")},
		{name: "tmp/", mode: 0o1777},
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for tr := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%s: owner %d:%d, time %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		names = append(names, h.Name)
	}
	if diff := cmp.Diff([]string{"etc/", "etc/a", "tmp/", "usr/", "usr/bin/", "usr/bin/b"}, names); diff != "" {
		t.Error(diff)
	}
	for _, bad := range [][]entry{
		{{name: "/abs"}}, {{name: "../out"}}, {{name: ""}}, {{name: "a/../b"}},
		{{name: "twice"}, {name: "twice"}},
		{{name: "gone", source: filepath.Join(t.TempDir(), "gone")}},
	} {
		if _, err := tarLayer(bad); err == nil {
			t.Errorf("%q was taken", bad[0].name)
		}
	}
}

func TestRun_BadArguments_Refused(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"an unknown image is named with the known ones", []string{"--only", "nope"}, `no image "nope"; there are: dra-kubelet-plugin, mps-supervisor, dra-controller, probe`},
		{"a stray argument is refused", []string{"probe"}, "--only"},
		{"a version that is no tag is refused", []string{"--only", "probe", "--version", "a b", "--out", t.TempDir()}, "cannot be an image tag"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := run(context.Background(), c.args, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestClosure_MissingLibrary_Named(t *testing.T) {
	_, err := closure(os.DirFS(t.TempDir()), []string{"libm.so.6"})
	if err == nil || !strings.Contains(err.Error(), "libm.so.6") {
		t.Errorf("error = %v", err)
	}
}

func FuzzElfNeeds_AnyBytes_NoPanic(f *testing.F) {
	if self, err := os.ReadFile("/proc/self/exe"); err == nil {
		f.Add(self[:min(len(self), 4096)])
	}
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, _ = elfNeeds(data) // must not panic
	})
}
