// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"gpu-dra-driver/test/cluster/internal/cache"
	"gpu-dra-driver/test/cluster/internal/recipe"
)

// publish writes the built programs below dir, in the layout of their makers' servers.
func publish(t *testing.T, dir string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	at, err := cache.Dir()
	must(err)
	c := cache.Cache{Dir: at, Progress: os.Stderr}
	components, err := c.Components(t.Context(), recipe.DefaultKubernetes)
	must(err)
	for _, component := range components {
		bin, ok := c.Bin(component)
		if !ok {
			t.Fatalf("%s is not built", component.Name)
		}
		for _, file := range component.Published(runtime.GOARCH) {
			to := filepath.Join(dir, strings.TrimPrefix(file.URL, "https://"))
			must(os.MkdirAll(filepath.Dir(to), 0o755))
			hash := sha256.New()
			f, err := os.Create(to)
			must(err)
			must(errors.Join(write(io.MultiWriter(f, hash), bin, file), f.Close()))
			line := fmt.Sprintf("%x  %s\n", hash.Sum(nil), path.Base(file.URL))
			must(os.WriteFile(filepath.Join(dir, strings.TrimPrefix(file.Sums, "https://")), []byte(line), 0o644))
		}
	}
}

// write writes a published file of the programs in bin.
func write(w io.Writer, bin string, file recipe.Published) error {
	if file.Program != "" {
		return copyFile(w, filepath.Join(bin, file.Program))
	}
	zipped, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	packed := tar.NewWriter(zipped)
	for name, at := range file.Programs {
		info, err := os.Stat(filepath.Join(bin, name))
		if err != nil {
			return err
		}
		if err := packed.WriteHeader(&tar.Header{Name: "./" + at, Typeflag: tar.TypeReg, Mode: 0o755, Size: info.Size()}); err != nil {
			return err
		}
		if err := copyFile(packed, filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return errors.Join(packed.Close(), zipped.Close())
}

func copyFile(w io.Writer, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// TestDownload_ProgramsOfAMirror_RunACluster serves the built programs as their makers do, and starts a cluster of what was downloaded.
func TestDownload_ProgramsOfAMirror_RunACluster(t *testing.T) {
	dir, own := t.TempDir(), t.TempDir()
	publish(t, dir)
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	onenode := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(programs.onenode, args...)
		cmd.Env = append(os.Environ(), "GPU_DRA_CACHE="+own)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("onenode %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	out := onenode("build", "--download", server.URL)
	t.Log(out)
	if entries, err := filepath.Glob(filepath.Join(own, "published-*")); err != nil || len(entries) != 5 {
		t.Errorf("downloaded %v, %v", entries, err)
	}
	if out := onenode("run", "--dir", filepath.Join(t.TempDir(), "cluster"), "--", "sh", "-c", "$(dirname $(\"$ONENODE\" which kubectl))/kubectl get nodes"); !strings.Contains(out, " Ready ") {
		t.Errorf("nodes:\n%s", out)
	}
}
