// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package requests has the files by which the hook of a starting container asks the plugin for a limit of its memory. A
// file has the request, and one beside it the answer. Only root can use their directory. A file waits while the plugin
// does not run. So containers start meanwhile too, and get their limit later.
package requests

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/memorylimit"
	"gpu-dra-driver/internal/procfs"
)

// Names of files, after the name of the request.
const (
	suffixRequest = ".request"
	suffixAnswer  = ".answer"
)

// sizeLimit limits the bytes of a file and of a container's state. A state has the annotations of its pod, of up to 256
// KiB.
const sizeLimit = 1 << 20

// labelAsk and labelAnswer label the files' operations.
const (
	labelAsk    host.Label = "limit.ask"
	labelAnswer host.Label = "limit.answer"
)

// ErrNoCgroup means that the machine has no cgroups of version 2, which the driver's limits need.
var ErrNoCgroup = errors.New("the container has no cgroup of version 2")

// name is the name of a request's files. A container that starts again has the same.
func name(r memorylimit.Request) string {
	key := r.ClaimUID + "\n" + r.Device + "\n" + r.Address + "\n" + strconv.FormatUint(r.Bytes, 10) + "\n" + r.Cgroup
	if r.Share != "" {
		key += "\n" + r.Share
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

// answer is the content of an answer's file; an empty Error means that the limit is set, or that there can be none.
type answer struct {
	Error string `json:"error,omitempty"`
}

// CgroupOf reads the cgroup of the container whose state a runtime gives to its hooks, from the host's /proc.
func CgroupOf(state io.Reader, procRoot string) (string, error) {
	data, err := io.ReadAll(io.LimitReader(state, sizeLimit))
	if err != nil {
		return "", fmt.Errorf("read the container's state: %w", err)
	}
	var s specs.State
	if err := json.Unmarshal(data, &s); err != nil || s.Pid <= 0 {
		return "", fmt.Errorf("the container's state has no process: %w", err)
	}
	path, err := procfs.Cgroup(procRoot, uint32(s.Pid))
	if err == nil && path == "" {
		err = ErrNoCgroup
	}
	return path, err
}

// Ask writes a request and waits for its answer. It returns no error if the context ends before: the plugin does not
// run, or the GPU does not answer. The limit follows then.
func Ask(ctx context.Context, h *host.Host, dir string, r memorylimit.Request) (answered bool, err error) {
	if err := r.Check(); err != nil {
		return false, err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	path := filepath.Join(dir, name(r))
	if err := h.WriteAtomic(labelAsk, path+suffixRequest, append(data, '\n'), 0o600); err != nil {
		return false, err
	}
	const pollInterval = 5 * time.Millisecond
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		data, err := os.ReadFile(path + suffixAnswer)
		var a answer
		switch {
		case err == nil && json.Unmarshal(data, &a) != nil:
			return true, fmt.Errorf("the answer %q in %s is not readable; delete the file", data, path+suffixAnswer)
		case err == nil && a.Error != "":
			return true, errors.New(a.Error)
		case err == nil:
			return true, nil
		case !errors.Is(err, fs.ErrNotExist):
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-tick.C:
		}
	}
}

// Files has the plugin's side of the files.
type Files struct {
	host *host.Host
	dir  string
}

// New returns the files in a directory, which Make makes.
func New(h *host.Host, dir string) *Files { return &Files{h, dir} }

// Make makes the directory, if there is none.
func (s *Files) Make() error {
	if _, err := os.Lstat(s.dir); err == nil {
		return nil // Only a new one must be synced.
	}
	return s.host.MkdirAll(labelAnswer, 0o700, s.dir)
}

// Dir is the directory, to be watched.
func (s *Files) Dir() string { return s.dir }

// List returns the requests, in the order of their files. It removes those of cgroups that are gone from cgroupRoot,
// and files without a request. With an error some requests can be missing.
func (s *Files) List(cgroupRoot string) (asked []memorylimit.Request, err error) {
	names, _, err := s.host.List(s.dir) // A hook is still writing the unfinished ones.
	if err != nil {
		return nil, fmt.Errorf("list the requests of memory limits: %w", err)
	}
	var errs []error
	answers := map[string]bool{} // Those without a request.
	for _, file := range names {
		if base, ok := strings.CutSuffix(file, suffixAnswer); ok {
			answers[base] = true
		}
	}
	for _, file := range names {
		base, ok := strings.CutSuffix(file, suffixRequest)
		if !ok {
			continue
		}
		r, err := s.read(file)
		if err == nil {
			_, err = os.Lstat(filepath.Join(cgroupRoot, r.Cgroup))
		}
		switch {
		case err == nil:
			asked = append(asked, r)
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, errMalformed):
			errs = append(errs, s.remove(base))
		default:
			errs = append(errs, err) // An unreadable request or cgroup is not an absent one.
		}
		delete(answers, base)
	}
	for base := range answers {
		errs = append(errs, s.remove(base))
	}
	return asked, errors.Join(errs...)
}

var errMalformed = errors.New("it is not a request of a memory limit")

func (s *Files) read(file string) (memorylimit.Request, error) {
	data, err := s.host.ReadFile(filepath.Join(s.dir, file))
	if err != nil {
		return memorylimit.Request{}, err
	}
	return decode(data)
}

func decode(data []byte) (r memorylimit.Request, err error) {
	if len(data) > sizeLimit || json.Unmarshal(bytes.TrimSpace(data), &r) != nil || r.Check() != nil {
		return memorylimit.Request{}, errMalformed
	}
	return r, nil
}

func (s *Files) remove(base string) error {
	return errors.Join(
		s.host.Remove(labelAnswer, filepath.Join(s.dir, base+suffixRequest)),
		s.host.Remove(labelAnswer, filepath.Join(s.dir, base+suffixAnswer)))
}

// Answer writes the answer to a request. With an error the container does not start.
func (s *Files) Answer(r memorylimit.Request, refused error) error {
	var a answer
	if refused != nil {
		a.Error = refused.Error()
	}
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return s.host.WriteAtomic(labelAnswer, filepath.Join(s.dir, name(r)+suffixAnswer), append(data, '\n'), 0o600)
}
