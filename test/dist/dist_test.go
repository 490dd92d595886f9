// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package dist checks the archives of the kubectl plugin with `krew` itself: its validation of manifests, and an
// installation from each archive.
package dist

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var made = flag.String("dir", "", "check the archives of this directory, for all platforms, instead of making one")

// manifest has the fields of the manifest that the test reads.
type manifest struct {
	Spec struct {
		Version   string
		Platforms []struct {
			URI, SHA256, Bin string
			Selector         struct{ MatchLabels map[string]string }
		}
	}
}

func command(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestDist_Archives_KrewInstallsThem makes the archive of this platform, or checks those of make dist.
func TestDist_Archives_KrewInstallsThem(t *testing.T) {
	dir, platforms := *made, 6
	if dir == "" {
		dir, platforms = t.TempDir(), 1
		command(t, nil, "../../hack/dist.sh", "1.2.3", dir, runtime.GOOS+"/"+runtime.GOARCH)
	}
	file := filepath.Join(dir, "gpu.yaml")
	command(t, nil, "go", "tool", "validate-krew-manifest", "-skip-install", "-manifest", file)
	text, err := os.ReadFile(file)
	must(t, err)
	var m manifest
	must(t, yaml.Unmarshal(text, &m))
	if len(m.Spec.Platforms) != platforms {
		t.Errorf("the manifest has %d platforms, want %d", len(m.Spec.Platforms), platforms)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	must(t, err)
	for _, p := range m.Spec.Platforms {
		name := p.URI[strings.LastIndex(p.URI, "/")+1:]
		archive := filepath.Join(dir, name)
		if !strings.Contains(string(sums), p.SHA256+"  "+name+"\n") {
			t.Errorf("SHA256SUMS lacks %s with %s", name, p.SHA256)
		}
		files, sum := read(t, archive)
		if sum != p.SHA256 {
			t.Errorf("%s has the checksum %s, the manifest says %s", name, sum, p.SHA256)
		}
		if got, want := slices.Sorted(maps.Keys(files)), slices.Sorted(slices.Values([]string{p.Bin, "LICENSE", "THIRD-PARTY-NOTICES", "kubectl_complete-gpu"})); !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", name, got, want)
		}
		checkNotices(t, name, files)
		os, arch := p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"]
		if want := map[string]string{"linux": "\x7fELF", "darwin": "\xcf\xfa\xed\xfe", "windows": "MZ"}[os]; want == "" || !strings.HasPrefix(files[p.Bin], want) {
			t.Errorf("%s: %s is not a program of %s", name, p.Bin, os)
		}
		install(t, file, archive, os, arch, strings.TrimPrefix(m.Spec.Version, "v"))
	}
	// Another archive must not be installed.
	first := m.Spec.Platforms[0]
	other := filepath.Join(t.TempDir(), "other.tar.gz")
	must(t, os.WriteFile(other, []byte("other"), 0o600))
	env := krew(t.TempDir(), first.Selector.MatchLabels["os"], first.Selector.MatchLabels["arch"])
	cmd := exec.Command("go", "tool", "krew", "install", "--manifest="+file, "--archive="+other)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "checksum") {
		t.Errorf("krew installs an archive with another checksum: %v, %s", err, out)
	}
}

// checkNotices checks that each module in the program of an archive has a licence text.
func checkNotices(t *testing.T, archive string, files map[string]string) {
	t.Helper()
	for name, data := range files {
		if !strings.HasPrefix(name, "kubectl-gpu") {
			continue
		}
		info, err := buildinfo.Read(strings.NewReader(data))
		must(t, err)
		if len(info.Deps) < 20 {
			t.Errorf("%s: the program has %d modules", archive, len(info.Deps))
		}
		for _, m := range info.Deps {
			if !strings.Contains(files["THIRD-PARTY-NOTICES"], "\n"+m.Path+" "+m.Version+" (") {
				t.Errorf("%s has no licence text of %s %s", archive, m.Path, m.Version)
			}
		}
	}
}

// krew returns the environment in which `krew` installs for a platform. It does not search for newer versions.
func krew(root, platform, arch string) []string {
	return []string{"KREW_ROOT=" + root, "KREW_OS=" + platform, "KREW_ARCH=" + arch, "KREW_NO_UPGRADE_CHECK=1"}
}

// install installs an archive, and runs the program if it is of this platform.
func install(t *testing.T, manifest, archive, platform, arch, version string) {
	t.Helper()
	root := t.TempDir()
	command(t, krew(root, platform, arch), "go", "tool", "krew", "install", "--manifest="+manifest, "--archive="+archive)
	installed, err := filepath.Glob(filepath.Join(root, "store/gpu/*/kubectl-gpu*"))
	if err != nil || len(installed) != 1 {
		t.Fatalf("krew installs %v: %v", installed, err)
	}
	if platform == runtime.GOOS && arch == runtime.GOARCH {
		if out := command(t, nil, filepath.Join(root, "bin/kubectl-gpu"), "--version"); strings.TrimSpace(out) != version {
			t.Errorf("kubectl gpu --version prints %s, want %s", out, version)
		}
	}
}

// read returns the files of an archive, which every user can read, and its checksum.
func read(t *testing.T, archive string) (map[string]string, string) {
	t.Helper()
	f, err := os.Open(archive)
	must(t, err)
	defer func() { _ = f.Close() }() // It was only read.
	sum := sha256.New()
	unzipped, err := gzip.NewReader(io.TeeReader(f, sum))
	must(t, err)
	files, in := map[string]string{}, tar.NewReader(unzipped)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if h.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(in)
		must(t, err)
		files[strings.TrimPrefix(h.Name, "./")] = string(data)
		if h.Mode&0o444 != 0o444 || h.Uid != 0 || h.Uname != "" {
			t.Errorf("%s: %s has the mode %o and the owner %d %s", archive, h.Name, h.Mode, h.Uid, h.Uname)
		}
	}
	_, err = io.Copy(sum, f)
	must(t, err)
	return files, hex.EncodeToString(sum.Sum(nil))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
