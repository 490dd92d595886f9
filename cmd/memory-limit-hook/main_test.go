// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/memorylimit"
	"gpu-dra-driver/internal/memorylimit/requests"
)

// TestRun_Container_AsksForItsCgroup runs the hook as a runtime does.
func TestRun_Container_AsksForItsCgroup(t *testing.T) {
	proc, cgroups, dir := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "limits")
	files := requests.New(host.New(host.Options{}), dir)
	if err := errors.Join(
		files.Make(), os.MkdirAll(filepath.Join(cgroups, "pods/one"), 0o755), os.MkdirAll(filepath.Join(proc, "7"), 0o755), os.MkdirAll(filepath.Join(proc, "8"), 0o755),
		os.WriteFile(filepath.Join(proc, "7/cgroup"), []byte("0::/pods/one\n"), 0o600), os.WriteFile(filepath.Join(proc, "8/cgroup"), []byte("1:memory:/x\n"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	want := memorylimit.Request{Claim: "ns/c", ClaimUID: "u", Device: "gpu-0000-1b-00-0", Address: "0000:1b:00.0", UUID: "GPU-0", Bytes: 1 << 30}
	args := append(want.Args(dir)[1:], "--proc="+proc)
	want.Cgroup = "/pods/one"
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		state  string
		answer error
		err    string
		stderr string
	}{
		{`{"pid":7}`, nil, "<nil>", ""}, {`{"pid":7}`, errors.New("refused"), "refused", ""},
		{`{"pid":8}`, nil, "<nil>", "no limit on gpu-0000-1b-00-0 for claim ns/c"}, {`{"pid":9}`, nil, "find the container's cgroup", ""},
	} {
		var stderr strings.Builder
		if err := files.Answer(want, c.answer); err != nil {
			t.Fatal(err)
		}
		err := run(t.Context(), args, strings.NewReader(c.state), &stderr)
		if !strings.HasPrefix(fmt.Sprint(err), c.err) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%+v: %v, %s", c, err, stderr.String())
		}
	}
	if asked, err := files.List(cgroups); err != nil || len(asked) != 1 || asked[0] != want {
		t.Errorf("asked %+v, %v", asked, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := files.Make(); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	if err := run(ended, args, strings.NewReader(`{"pid":7}`), &stderr); err != nil || !strings.Contains(stderr.String(), "follows once the plugin answers") {
		t.Errorf("no plugin: %v, %s", err, stderr.String())
	}
	if err := run(t.Context(), []string{"--bytes=x"}, strings.NewReader(""), &stderr); err == nil {
		t.Error("a number that is none is accepted")
	}
}

// TestRun_ArgumentsOfAnyRelease_AskForTheLimit runs the hook with the arguments of each release, and of one that is newer: a
// container of a CDI spec restarts after an upgrade and after a downgrade.
func TestRun_ArgumentsOfAnyRelease_AskForTheLimit(t *testing.T) {
	goldens, err := filepath.Glob("testdata/args/*.txt")
	if err != nil || len(goldens) != 3 {
		t.Fatal(goldens, err)
	}
	for _, golden := range goldens {
		text, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		proc, cgroups, dir := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "limits")
		files := requests.New(host.New(host.Options{}), dir)
		want := memorylimit.Request{
			Claim: "ns/c", ClaimUID: "u", Device: "gpu-0000-1b-00-0", Address: "0000:1b:00.0", UUID: "GPU-0", Bytes: 1 << 30, Cgroup: "/pods/one",
		}
		if filepath.Base(golden) != "1.txt" {
			want.Share = "s-1"
		}
		if err := errors.Join(
			files.Make(), os.MkdirAll(filepath.Join(cgroups, "pods/one"), 0o755), os.MkdirAll(filepath.Join(proc, "7"), 0o755),
			os.WriteFile(filepath.Join(proc, "7/cgroup"), []byte("0::/pods/one\n"), 0o600), files.Answer(want, nil),
		); err != nil {
			t.Fatal(err)
		}
		args := strings.Fields(strings.ReplaceAll(string(text), "{requests}", dir))
		var stderr strings.Builder
		if err := run(t.Context(), append(args, "--proc="+proc), strings.NewReader(`{"pid":7}`), &stderr); err != nil {
			t.Errorf("%s: %v", golden, err)
		}
		if asked, err := files.List(cgroups); err != nil || len(asked) != 1 || asked[0] != want {
			t.Errorf("%s: asked %+v, %v", golden, asked, err)
		}
		if newest := append([]string{memorylimit.HookName}, args...); golden == "testdata/args/2.txt" && !slices.Equal(newest, want.Args(dir)) {
			t.Errorf("%s is not the newest form: %q", golden, want.Args(dir))
		}
	}
}
