// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"gpu-dra-driver/test/cluster/internal/recipe"
)

// Limits of what a server may send.
const (
	maxSums    = 1 << 20
	maxFile    = 1 << 30
	maxProgram = 1 << 29
)

// Source is where published programs come from.
type Source struct {
	// Mirror is the address of a server that has the makers' files below their host, as in MIRROR/dl.k8s.io/release/…; empty for the
	// makers' own servers.
	Mirror string
	// Stall is the time after which a download that brings nothing ends.
	Stall time.Duration
}

// address is where the source has a file.
func (s Source) address(url string) string {
	if s.Mirror == "" {
		return url
	}
	return strings.TrimSuffix(s.Mirror, "/") + "/" + strings.TrimPrefix(url, "https://")
}

// downloaded is the cache entry of a component's published programs.
func downloaded(c recipe.Component) string { return "published-" + c.Key() }

// Download fetches the published programs of the components that are missing. Those without a release are left to Build.
func (c Cache) Download(ctx context.Context, s Source, components []recipe.Component) error {
	start := time.Now()
	for i, component := range components {
		files := component.Published(runtime.GOARCH)
		if _, ok := c.Bin(component); ok || len(files) == 0 {
			continue
		}
		label := fmt.Sprintf("[%d/%d] download of %s %s", i+1, len(components), component.Name, component.Version)
		_, err := c.Entry(ctx, downloaded(component), label, start, func(dir string) error {
			for _, file := range files {
				if err := c.fetch(ctx, s, file, filepath.Join(dir, "bin"), label); err != nil {
					return fmt.Errorf("download %s: %w. Without DOWNLOAD the programs are built", s.address(file.URL), err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fetch downloads a file, checks its sum, and puts its programs into bin.
func (c Cache) fetch(ctx context.Context, s Source, file recipe.Published, bin, label string) error {
	var sums bytes.Buffer
	if err := s.get(ctx, file.Sums, &sums, maxSums, io.Discard, label); err != nil {
		return fmt.Errorf("its checksum from %s: %w", s.address(file.Sums), err)
	}
	want, err := sumOf(sums.String(), path.Base(file.URL))
	if err != nil {
		return fmt.Errorf("its checksum from %s: %w", s.address(file.Sums), err)
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(bin), ".download-")
	if err != nil {
		return err
	}
	defer func() {
		tmp.Close()
		os.Remove(tmp.Name())
	}()
	hash := sha256.New()
	if err := s.get(ctx, file.URL, io.MultiWriter(tmp, hash), maxFile, c.Progress, label); err != nil {
		return err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != want {
		return fmt.Errorf("it has the SHA-256 checksum %s, and %s says %s: the file is damaged or not the published one", got, s.address(file.Sums), want)
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if len(file.Programs) == 0 {
		return place(tmp, filepath.Join(bin, file.Program))
	}
	return unpack(tmp, file.Programs, bin)
}

// sumOf finds the SHA-256 checksum of a file in a published text.
func sumOf(text, name string) (string, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		alone := len(fields) == 1 && len(strings.Fields(text)) == 1
		named := len(fields) == 2 && path.Base(strings.TrimPrefix(fields[1], "*")) == name
		if !alone && !named {
			continue
		}
		if sum, err := hex.DecodeString(fields[0]); err == nil && len(sum) == sha256.Size {
			return strings.ToLower(fields[0]), nil
		}
	}
	return "", fmt.Errorf("the answer has no SHA-256 checksum of %s: %.60q", name, text)
}

// get writes a file of the source to w, and reports its progress each few seconds.
func (s Source) get(ctx context.Context, url string, w io.Writer, limit int64, progress io.Writer, label string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := fmt.Errorf("nothing came for %s", s.Stall)
	watchdog := time.AfterFunc(s.Stall, func() { cancel(stalled) })
	defer watchdog.Stop()
	err := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.address(url), nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode == http.StatusNotFound {
			return errors.New("404: this version or architecture is not published there")
		}
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("the server answers %s", answer.Status)
		}
		meter := &meter{w: w, watchdog: watchdog, stall: s.Stall, progress: progress, label: label + " " + path.Base(url), total: answer.ContentLength, last: time.Now()}
		n, err := io.Copy(meter, io.LimitReader(answer.Body, limit+1))
		if err == nil && n > limit {
			err = fmt.Errorf("it has more than %d MiB", limit>>20)
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("it ends after %d of %d bytes", n, answer.ContentLength)
		}
		return err
	}()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// meter passes bytes on, keeps a watchdog quiet, and prints how far a download is.
type meter struct {
	w        io.Writer
	watchdog *time.Timer
	stall    time.Duration
	progress io.Writer
	label    string
	total, n int64
	last     time.Time
}

func (m *meter) Write(p []byte) (int, error) {
	m.watchdog.Reset(m.stall)
	m.n += int64(len(p))
	if now := time.Now(); now.Sub(m.last) >= 3*time.Second {
		m.last = now
		fmt.Fprintf(m.progress, "%s: %d of %d MB\n", m.label, m.n/1e6, m.total/1e6)
	}
	return m.w.Write(p)
}

// unpack takes programs out of an archive.
func unpack(archive io.Reader, programs map[string]string, bin string) error {
	unzipped, err := gzip.NewReader(archive)
	if err != nil {
		return fmt.Errorf("unreadable archive: %w", err)
	}
	missing := map[string]string{}
	for name, at := range programs {
		missing[path.Clean(at)] = name
	}
	for in := tar.NewReader(unzipped); len(missing) > 0; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the archive lacks the programs %v", missing)
		}
		if err != nil {
			return fmt.Errorf("unreadable archive: %w", err)
		}
		at := path.Clean(h.Name)
		name, wanted := missing[at]
		if !wanted {
			continue
		}
		if h.Typeflag != tar.TypeReg {
			return fmt.Errorf("%s in the archive is not a file", at)
		}
		if err := place(in, filepath.Join(bin, name)); err != nil {
			return err
		}
		delete(missing, at)
	}
	return nil
}

// place writes a program.
func place(from io.Reader, to string) error {
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(from, maxProgram+1))
	if err == nil && n > maxProgram {
		err = fmt.Errorf("the program %s has more than %d MiB", filepath.Base(to), maxProgram>>20)
	}
	return errors.Join(err, f.Close())
}
