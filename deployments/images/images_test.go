// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/elliptic"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdxlib"
	"sigs.k8s.io/yaml"
)

const cgoProgram = `package main

// #include <math.h>
// #cgo LDFLAGS: -lm
import "C"

import (
	"fmt"

	"github.com/google/go-cmp/cmp"
)

var version = "unset"

func main() { fmt.Printf("%s %.0f %t\n", version, float64(C.cbrt(27)), cmp.Equal(1, 1)) }
`

const libraryProgram = `package main

import "C"

//export toyAnswer
func toyAnswer() C.int { return 42 }

func main() {}
`

const plainProgram = "package main\n\nfunc main() { println(1) }\n"

var (
	cgoToy = image{
		name: "toy", title: "toy", user: nonRoot, libs: nvmlLibs,
		binaries: []binary{{pkg: "./cmd/toy", path: "usr/bin/toy", cgo: true, stamp: "main.version"}},
	}
	plainToy = image{
		name: "toy", title: "toy", user: nonRoot,
		binaries: []binary{{pkg: "./cmd/plain", path: "usr/bin/plain"}},
	}
)

// toyBuilder builds a module with two programs: one links the C library and another module, the other links nothing.
func toyBuilder(t *testing.T) builder {
	t.Helper()
	sums, err := os.ReadFile("../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/google/go-cmp v0.7.0"
	var sum strings.Builder
	for line := range strings.Lines(string(sums)) {
		if strings.HasPrefix(line, module) {
			sum.WriteString(line)
		}
	}
	b := builder{root: t.TempDir(), version: "v1.2.3", out: t.TempDir(), progress: io.Discard}
	for name, contents := range map[string]string{
		"go.mod":            "module toy\n\ngo 1.26.0\n\nrequire " + module + "\n",
		"go.sum":            sum.String(),
		"LICENSE":           "toy licence\n",
		"cmd/toy/main.go":   cgoProgram,
		"cmd/plain/main.go": plainProgram,
		"lib/main.go":       libraryProgram,
	} {
		file := filepath.Join(b.root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(contents), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func release(t *testing.T, b builder, im image, archs string) released {
	t.Helper()
	on, err := platforms(archs)
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.release(t.Context(), im, on)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// toyImage returns the image in the tarball, and the directory of all files.
func toyImage(t *testing.T) (dir string, loaded v1.Image) {
	t.Helper()
	b := toyBuilder(t)
	r := release(t, b, cgoToy, runtime.GOARCH)
	if r.reference.String() != "gpu-dra-driver/toy:v1.2.3" || len(r.sizes) != 1 || r.sizes[0] == 0 {
		t.Errorf("released is %+v", r)
	}
	loaded, err := tarball.ImageFromPath(filepath.Join(b.out, "toy-v1.2.3.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return b.out, loaded
}

func index(t *testing.T, layoutDir string) v1.ImageIndex {
	t.Helper()
	all, err := layout.ImageIndexFromPath(layoutDir)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// content returns the only entry of an OCI layout: programs that copy layouts ask for one.
func content(t *testing.T, layoutDir string) v1.Descriptor {
	t.Helper()
	manifest, err := index(t, layoutDir).IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("the layout has %+v, %v", manifest, err)
	}
	return manifest.Manifests[0]
}

// TestRelease_TwoDirectories_SameFiles builds from two directories into two others.
func TestRelease_TwoDirectories_SameFiles(t *testing.T) {
	key := newKey(t, elliptic.P256())
	var builds [2]map[string]string
	for i := range builds {
		b := toyBuilder(t)
		b.key = key
		r := release(t, b, cgoToy, runtime.GOARCH)
		builds[i] = map[string]string{"digest": r.digest.String()}
		err := filepath.WalkDir(b.out, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			builds[i][strings.TrimPrefix(path, b.out)] = fmt.Sprintf("%x", sha256.Sum256(data))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(builds[0], builds[1]); diff != "" || len(builds[0]) < 12 {
		t.Errorf("%d files (-first +second):\n%s", len(builds[0]), diff)
	}
}

// TestRelease_CLibrary_SameFilesWithName also proves that the list of modules is read from a library.
func TestRelease_CLibrary_SameFilesWithName(t *testing.T) {
	im := image{
		name: "toy", title: "toy", user: nonRoot,
		binaries: []binary{{pkg: "./cmd/plain", path: "usr/bin/plain"}, {pkg: "./lib", path: "usr/lib/toy/libtoy.so.1", cgo: true, soname: "libtoy.so.1"}},
	}
	first := toyBuilder(t)
	one, two := release(t, first, im, runtime.GOARCH), release(t, toyBuilder(t), im, runtime.GOARCH)
	if one.digest != two.digest {
		t.Errorf("the digests are %s and %s", one.digest, two.digest)
	}
	loaded, err := tarball.ImageFromPath(filepath.Join(first.out, "toy-v1.2.3.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	library, err := elf.Open(filepath.Join(unpack(t, loaded), "usr/lib/toy/libtoy.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	names, err := library.DynString(elf.DT_SONAME)
	if err != nil || !slices.Equal(names, []string{"libtoy.so.1"}) {
		t.Errorf("the library's name is %v, %v", names, err)
	}
}

func TestRelease_TwoPlatforms_OneIndex(t *testing.T) {
	b := toyBuilder(t)
	r := release(t, b, plainToy, "arm64,amd64,arm64")
	dir := filepath.Join(b.out, "toy-v1.2.3")
	entry := content(t, dir)
	want := map[string]string{
		"io.containerd.image.name": "docker.io/gpu-dra-driver/toy:v1.2.3", "org.opencontainers.image.ref.name": "v1.2.3",
	}
	if diff := cmp.Diff(want, entry.Annotations); diff != "" || entry.Digest != r.digest {
		t.Errorf("the layout has %v, released is %v:\n%s", entry.Digest, r.digest, diff)
	}
	both, err := index(t, dir).ImageIndex(r.digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(both); err != nil {
		t.Error(err)
	}
	manifest, err := both.IndexManifest()
	if err != nil || manifest.MediaType != types.OCIImageIndex || len(manifest.Manifests) != 2 {
		t.Fatalf("index = %+v, %v", manifest, err)
	}
	for i, want := range []struct {
		arch    string
		machine elf.Machine
	}{{"amd64", elf.EM_X86_64}, {"arm64", elf.EM_AARCH64}} {
		one := manifest.Manifests[i]
		if diff := cmp.Diff(&v1.Platform{OS: "linux", Architecture: want.arch}, one.Platform); diff != "" {
			t.Error(diff)
		}
		im, err := both.Image(one.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := im.ConfigFile()
		if err != nil || config.Architecture != want.arch {
			t.Errorf("the image of %s is for %s: %v", want.arch, config.Architecture, err)
		}
		program, err := elf.Open(filepath.Join(unpack(t, im), "usr/bin/plain"))
		if err != nil {
			t.Fatal(err)
		}
		program.Close()
		if program.Machine != want.machine {
			t.Errorf("the program of %s is for %v", want.arch, program.Machine)
		}
		if _, err := os.Stat(dir + "-" + want.arch + ".spdx.json"); err != nil {
			t.Error(err)
		}
	}
}

// TestRelease_Image_HasProgramAndLibrariesOnly looks into the image: neither a shell nor another tool helps who breaks in.
func TestRelease_Image_HasProgramAndLibrariesOnly(t *testing.T) {
	_, loaded := toyImage(t)
	root := unpack(t, loaded)
	var programs, others []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		switch {
		case info.Mode()&0o111 != 0 && !strings.HasPrefix(d.Name(), "ld-linux-"):
			programs = append(programs, d.Name())
		case info.Mode()&0o111 == 0 && !strings.HasPrefix(name, "licenses/"):
			others = append(others, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(programs)
	want := slices.Sorted(slices.Values(append([]string{"toy"}, nvmlLibs...)))
	if diff := cmp.Diff(want, programs); diff != "" {
		t.Errorf("executables (-want +image):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"etc/group", "etc/nsswitch.conf", "etc/passwd"}, others); diff != "" {
		t.Errorf("other files (-want +image):\n%s", diff)
	}
}

// TestRelease_Image_RunsByItself runs the program with the image's files only, which proves that the libraries are
// complete.
func TestRelease_Image_RunsByItself(t *testing.T) {
	_, loaded := toyImage(t)
	if err := validate.Image(loaded); err != nil {
		t.Fatal(err)
	}
	config, err := loaded.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != nonRoot || !cmp.Equal(config.Config.Entrypoint, []string{"/usr/bin/toy"}) {
		t.Errorf("config = %+v", config.Config)
	}
	root := unpack(t, loaded)
	cmd := exec.Command("/usr/bin/toy")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		cmd.Dir = "/"
	} else {
		cmd = exec.Command(filepath.Join(root, "usr/bin/toy"))
	}
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "v1.2.3 3 true" {
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

// TestCatalog_Hook_RunsWithoutCLibrary runs it as a node does whose C library is older, or another one.
func TestCatalog_Hook_RunsWithoutCLibrary(t *testing.T) {
	on, err := platforms(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	b := builder{root: "../..", version: "v1.2.3", out: t.TempDir(), progress: io.Discard}
	im := catalog[0]
	i := slices.IndexFunc(im.binaries, func(bin binary) bool { return bin.path == "usr/bin/nvidia-cdi-hook" })
	hook, err := b.compile(t.Context(), im, im.binaries[i], on[0])
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/nvidia-cdi-hook", "--version")
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: filepath.Dir(hook)}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "version v1.") {
		t.Errorf("it printed %q, %v", out, err)
	}
}

// TestSBOM_Image_ListsFilesPartsAndLicenses reads the list with the library of SPDX.
func TestSBOM_Image_ListsFilesPartsAndLicenses(t *testing.T) {
	dir, loaded := toyImage(t)
	data, err := os.ReadFile(filepath.Join(dir, "toy-v1.2.3-"+runtime.GOARCH+".spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := spdxjson.Read(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(list); err != nil {
		t.Error(err)
	}
	if described, err := spdxlib.GetDescribedPackageIDs(list); err != nil || !cmp.Equal(described, []common.ElementID{"Image"}) {
		t.Errorf("it describes %v, %v", described, err)
	}
	root := unpack(t, loaded)
	var names []string
	for _, p := range list.Packages {
		names = append(names, p.PackageName)
		if p.PackageName == "toy" && p.PackageExternalReferences[0].Locator != "pkg:golang/toy@v1.2.3" {
			t.Errorf("the image's own module is %+v", p.PackageExternalReferences[0])
		}
		if p.PackageSPDXIdentifier == "Image" {
			continue
		}
		_, texts, _ := strings.Cut(p.PackageLicenseComments, ": ")
		for file := range strings.SplitSeq(texts, ", ") {
			if text, err := os.ReadFile(filepath.Join(root, file)); err != nil || len(text) == 0 {
				t.Errorf("licence of %s: %v", p.PackageName, err)
			}
		}
	}
	slices.Sort(names)
	want := []string{"github.com/google/go-cmp", "gpu-dra-driver/toy", "libc6", "libgcc-s1", "std", "toy"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("packages (-want +list):\n%s", diff)
	}
	listed := map[string]string{}
	for _, f := range list.Files {
		listed[f.FileName] = f.Checksums[1].Value
	}
	found := map[string]string{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		found[strings.TrimPrefix(path, root)] = fmt.Sprintf("%x", sha256.Sum256(data))
		return err
	})
	if diff := cmp.Diff(found, listed); diff != "" || err != nil {
		t.Errorf("%v, files (-image +list):\n%s", err, diff)
	}
	gpl, err := filepath.Glob(filepath.Join(root, "licenses/libgcc-s1@*/GPL-3"))
	if err != nil || len(gpl) != 1 {
		t.Errorf("the licence that the copyright of libgcc-s1 names is %v, %v", gpl, err)
	}
}

func TestParts_LicenseMissing_Refused(t *testing.T) {
	b := toyBuilder(t)
	if err := os.Remove(filepath.Join(b.root, "LICENSE")); err != nil {
		t.Fatal(err)
	}
	on, err := platforms(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.release(t.Context(), plainToy, on); err == nil || !strings.Contains(err.Error(), "LICENSE") {
		t.Errorf("error = %v", err)
	}
	_, err = debianParts(t.Context(), on[0], []entry{{name: "lib/own.so"}})
	if err == nil || !strings.Contains(err.Error(), "lib/own.so is of no Debian package") {
		t.Errorf("error = %v", err)
	}
}

// TestNotices_Program_HasTextsOfItsModules checks the notices of a toy. make dist checks those of every platform.
func TestNotices_Program_HasTextsOfItsModules(t *testing.T) {
	b := toyBuilder(t)
	file := filepath.Join(b.root, "cmd/toy/main.go")
	built := filepath.Join(b.out, "toy")
	if _, err := b.goCommand(t.Context(), "", nil, "build", "-o", built, "./cmd/toy"); err != nil {
		t.Fatal(err)
	}
	text, err := b.notices(t.Context(), built)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"toy contains software of others", "\ngithub.com/google/go-cmp v0.7.0 (LICENSE)\n", "Copyright (c) 2017 The Go Authors",
		"\nstd " + strings.TrimPrefix(runtime.Version(), "go") + " (LICENSE)\n", "(PATENTS)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the notices:\n%s", want, text)
		}
	}
	if strings.Contains(text, "toy licence") {
		t.Error("the notices have the repository's own licence")
	}
	if _, err := b.notices(t.Context(), file); err == nil || !strings.Contains(err.Error(), "main.go") {
		t.Errorf("a source file: %v", err)
	}
	if env := (platform{os: "windows", arch: "arm64"}).env(binary{}); !slices.Contains(env, "GOOS=windows") {
		t.Errorf("modules for Windows are listed with %v", env)
	}
}

// TestCatalog_Digests_AreValuesOfTheChart checks that its chart takes each printed digest for the image of that name.
func TestCatalog_Digests_AreValuesOfTheChart(t *testing.T) {
	type values map[string]any
	given := 0
	for _, im := range catalog {
		if im.chart == "" {
			continue
		}
		given++
		data, err := os.ReadFile("../helm/" + im.chart + "/values.yaml")
		if err != nil {
			t.Fatal(err)
		}
		var chart values
		if err := yaml.Unmarshal(data, &chart); err != nil {
			t.Fatal(err)
		}
		var set values
		if err := yaml.Unmarshal(fmt.Appendf(nil, im.values, "sha256:0"), &set); err != nil {
			t.Fatal(err)
		}
		at := chart
		for len(set) == 1 && set["digest"] == nil {
			for key, below := range set {
				set, _ = below.(map[string]any)
				at, _ = at[key].(map[string]any)
			}
		}
		_, ok := at["digest"]
		if repo := at["repository"]; !ok || set["digest"] != "sha256:0" || repo != repository+"/"+im.name {
			t.Errorf("%s: the digest goes to the image %v: %v", im.name, repo, at)
		}
	}
	if given != 4 {
		t.Errorf("%d images have values in the charts, want 4", given)
	}
}

// TestDockerfile_Builder_TakesItsFlags compares the call in the Dockerfile with the flags and the files of this tree.
func TestDockerfile_Builder_TakesItsFlags(t *testing.T) {
	data, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	var usage strings.Builder
	if err := run(t.Context(), []string{"--help"}, io.Discard, &usage); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	_, call, _ := strings.Cut(string(data), "run ./images")
	call, _, _ = strings.Cut(call, "&&")
	flags := regexp.MustCompile(`--([a-z]+)`).FindAllStringSubmatch(call, -1)
	for _, one := range flags {
		if !strings.Contains(usage.String(), "\n  -"+one[1]+" ") {
			t.Errorf("there is no --%s: %s", one[1], usage.String())
		}
	}
	if len(flags) != 3 {
		t.Errorf("flags = %q", flags)
	}
	if _, err := os.Stat("../../hack/cross-packages.sh"); err != nil || !bytes.Contains(data, []byte("hack/cross-packages.sh")) {
		t.Errorf("the cross compiler: %v", err)
	}
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
		{"a version that is not a tag is refused", []string{"--only", "probe", "--version", "a b", "--out", t.TempDir()}, "cannot be an image tag"},
		{"an unknown architecture is named with the known ones", []string{"--arch", "arm64,s390x"}, `architecture "s390x"; there are: amd64, arm64`},
		{"a key that is not there is refused", []string{"--key", t.TempDir()}, "cannot read the key"},
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
	_, err := closure(os.DirFS(t.TempDir()), "x86_64-linux-gnu", []string{"libm.so.6"})
	if err == nil || !strings.Contains(err.Error(), "libm.so.6") {
		t.Errorf("error = %v", err)
	}
}

// TestClosure_LibrariesAlone_HaveTheLinker is for the programs of a driver root: the image's own program is static.
func TestClosure_LibrariesAlone_HaveTheLinker(t *testing.T) {
	on, err := platforms(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	linker, _, err := elfNeeds(shell)
	if err != nil {
		t.Fatal(err)
	}
	libs, err := closure(os.DirFS("/"), on[0].triplet, nvmlLibs)
	if err != nil || !slices.ContainsFunc(libs, func(e entry) bool { return "/"+e.name == linker }) {
		t.Errorf("no %s among %d files (%v)", linker, len(libs), err)
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
