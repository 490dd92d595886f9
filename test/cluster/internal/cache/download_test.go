// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/test/cluster/internal/recipe"
)

// etcd is published as an archive, and runc as a program.
var (
	etcd = recipe.Component{Name: "etcd", Module: "go.etcd.io/etcd/server/v3", Version: "v3.6.5", Binary: "etcd"}
	runc = recipe.Component{Name: "runc", Module: "github.com/opencontainers/runc", Version: "v1.5.2", Binary: "runc"}
)

const (
	etcdPage = "/github.com/etcd-io/etcd/releases/download/v3.6.5/"
	runcPage = "/github.com/opencontainers/runc/releases/download/v1.5.2/"
	etcdBase = "etcd-v3.6.5-linux-" + runtime.GOARCH
)

// archive packs files, or other entries for an empty text.
func archive(t *testing.T, files map[string]string) string {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	w := tar.NewWriter(zipped)
	for name, text := range files {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}
		if text == "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, "/etc/passwd"
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func sum(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// published are the files of a server, by path.
func published(t *testing.T) map[string]string {
	t.Helper()
	packed := archive(t, map[string]string{etcdBase + "/README.md": "text", etcdBase + "/etcd": "program etcd", etcdBase + "/etcdctl": "other"})
	return map[string]string{
		etcdPage + etcdBase + ".tar.gz":     packed,
		etcdPage + "SHA256SUMS":             sum("x") + "  etcd-v3.6.5-darwin-amd64.zip\n" + sum(packed) + "  " + etcdBase + ".tar.gz\n",
		runcPage + "runc." + runtime.GOARCH: "program runc",
		runcPage + "runc.sha256sum":         sum("program runc") + " *runc." + runtime.GOARCH + "\n" + sum("y") + " *runc.s390x\n",
	}
}

// serve is a mirror of the files. Requests for hanging wait until the test ends, after half of the file.
func serve(t *testing.T, files map[string]string, hanging, short string) Source {
	t.Helper()
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := files[r.URL.Path]
		switch {
		case r.URL.Path == hanging || r.URL.Path == short:
			w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			fmt.Fprint(w, text[:len(text)/2])
			w.(http.Flusher).Flush()
			if r.URL.Path == hanging {
				<-done
			}
		case !ok:
			http.NotFound(w, r)
		case strings.HasPrefix(text, "redirect "):
			http.Redirect(w, r, strings.TrimPrefix(text, "redirect "), http.StatusFound)
		case strings.HasPrefix(text, "status "):
			http.Error(w, "no", http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(done) })
	return Source{Mirror: server.URL + "/", Stall: time.Minute}
}

func TestDownload_PublishedPrograms_ServeInPlaceOfBuiltOnes(t *testing.T) {
	files := published(t)
	// GitHub redirects to another place.
	at := runcPage + "runc." + runtime.GOARCH
	files["/elsewhere"], files[at] = files[at], "redirect /elsewhere"
	c := Cache{Dir: t.TempDir(), Progress: &buffer{}}
	own := program("package main\n\nfunc main() {}\n")
	components := []recipe.Component{etcd, runc, own}
	if err := c.Download(t.Context(), serve(t, files, "", ""), components); err != nil {
		t.Fatal(err)
	}
	bins, err := c.Build(t.Context(), components)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"etcd", "runc"} {
		text, err := os.ReadFile(filepath.Join(bins[i], name))
		info, statErr := os.Stat(filepath.Join(bins[i], name))
		if err != nil || statErr != nil || string(text) != "program "+name || info.Mode().Perm()&0o111 == 0 {
			t.Errorf("%s: %q, %v, %v", name, text, info, err)
		}
	}
	if found, err := os.ReadDir(bins[0]); err != nil || len(found) != 1 {
		t.Errorf("bin has %v, %v", found, err)
	}
	if _, err := os.Stat(filepath.Join(bins[2], "tiny")); err != nil {
		t.Errorf("the program without a release: %v", err)
	}
	// Nothing is fetched twice.
	if err := c.Download(t.Context(), Source{Mirror: "http://127.0.0.1:1"}, components); err != nil {
		t.Error(err)
	}
}

// TestDownload_ServerIsWrong_SaysSoAndKeepsNothing has servers with files that are missing, short, wrong or slow.
func TestDownload_ServerIsWrong_SaysSoAndKeepsNothing(t *testing.T) {
	packed := etcdPage + etcdBase + ".tar.gz"
	// replace has another archive with its right checksum.
	replace := func(files map[string]string, text string) {
		files[packed], files[etcdPage+"SHA256SUMS"] = text, sum(text)+"  "+etcdBase+".tar.gz\n"
	}
	for name, c := range map[string]struct {
		change         func(map[string]string)
		hanging, short string
		want           string
	}{
		"no file":              {change: func(f map[string]string) { delete(f, packed) }, want: "not published there"},
		"no checksum":          {change: func(f map[string]string) { delete(f, etcdPage+"SHA256SUMS") }, want: "its checksum from "},
		"a short file":         {short: packed, want: "it ends after "},
		"a changed file":       {change: func(f map[string]string) { f[packed] += "more" }, want: "the file is damaged or not the published one"},
		"a slow file":          {hanging: packed, want: "nothing came for 300ms"},
		"a slow checksum":      {hanging: etcdPage + "SHA256SUMS", want: "nothing came for 300ms"},
		"a server in trouble":  {change: func(f map[string]string) { f[packed] = "status 503" }, want: "503"},
		"a page, not checksum": {change: func(f map[string]string) { f[etcdPage+"SHA256SUMS"] = "<html>log in</html>" }, want: "no SHA-256 checksum of " + etcdBase},
		"a checksum of others": {change: func(f map[string]string) { f[etcdPage+"SHA256SUMS"] = sum("x") + "  other.tar.gz\n" }, want: "no SHA-256 checksum"},
		"a long checksum":      {change: func(f map[string]string) { f[etcdPage+"SHA256SUMS"] = strings.Repeat("0", maxSums+1) }, want: "more than 1 MiB"},
		"no archive":           {change: func(f map[string]string) { replace(f, "text") }, want: "unreadable archive"},
		"a cut archive":        {change: func(f map[string]string) { replace(f, f[packed][:len(f[packed])/2]) }, want: "unreadable archive"},
		"an archive of others": {change: func(f map[string]string) { replace(f, archive(t, map[string]string{"etcd": "elsewhere"})) }, want: "lacks the programs"},
		"a link as a program":  {change: func(f map[string]string) { replace(f, archive(t, map[string]string{etcdBase + "/etcd": ""})) }, want: "is not a file"},
	} {
		t.Run(name, func(t *testing.T) {
			files := published(t)
			if c.change != nil {
				c.change(files)
			}
			source := serve(t, files, c.hanging, c.short)
			if c.hanging != "" {
				source.Stall = 300 * time.Millisecond
			}
			kept := Cache{Dir: t.TempDir(), Progress: &buffer{}}
			err := kept.Download(t.Context(), source, []recipe.Component{etcd})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "Without DOWNLOAD the programs are built") {
				t.Errorf("error = %v, want %q in it", err, c.want)
			}
			if _, ok := kept.Bin(etcd); ok {
				t.Error("the program is used")
			}
			left, err := filepath.Glob(filepath.Join(kept.Dir, ".building-*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func FuzzSumOf(f *testing.F) {
	f.Add(sum("x")+"  a.tgz\n", "a.tgz")
	f.Add(sum("x"), "a")
	f.Add("a b c\n\n", "b")
	f.Fuzz(func(t *testing.T, text, name string) {
		got, err := sumOf(text, name)
		if err == nil && (len(got) != 64 || !strings.Contains(strings.ToLower(text), got)) {
			t.Errorf("sum %q of %q", got, text)
		}
	})
}
