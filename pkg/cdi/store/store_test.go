// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/pkg/cdi/store"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestStore_OtherDriversSpecs_StayUntouched(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "cdi")
	must(t, os.MkdirAll(dir, 0o755))
	foreign := []string{".nic.tmp", "k8s.other.com-claim_u-1.json", "nvidia.yaml"}
	for _, name := range foreign {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	s := store.New(host.New(host.Options{}), dir, t.TempDir(), "gpu.nvidia.com")
	must(t, s.Write("u-1", []byte("a")))
	must(t, s.Write("u-2", []byte("b")))
	must(t, os.WriteFile(filepath.Join(dir, ".k8s.gpu.nvidia.com-claim_u-3.json.tmp"), nil, 0o600))
	uids, err := s.UIDs()
	must(t, err)
	if diff := cmp.Diff([]string{"u-1", "u-2", "u-3"}, uids); diff != "" {
		t.Error(diff)
	}
	if data, err := s.Read("u-1"); string(data) != "a" || err != nil {
		t.Errorf("read %q, %v", data, err)
	}
	for _, uid := range append(uids, "never") {
		must(t, s.Remove(uid))
	}
	if diff := cmp.Diff(foreign, names(t, dir)); diff != "" {
		t.Errorf("what is others' (-want +left):\n%s", diff)
	}
	if _, err := s.Read("u-1"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestWrite_NoDirectory_MakesIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "cdi")
	s := store.New(host.New(host.Options{}), dir, t.TempDir(), "gpu.nvidia.com")
	if uids, err := s.UIDs(); len(uids) > 0 || err != nil {
		t.Error(uids, err)
	}
	must(t, s.Usable())
	must(t, s.Write("u-1", []byte("a")))
	must(t, s.Usable())
	if diff := cmp.Diff([]string{"k8s.gpu.nvidia.com-claim_u-1.json"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestWrite_SameSpec_WritesNothing(t *testing.T) {
	f := hosttest.Trace()
	f.Arm()
	s := store.New(host.New(host.Options{FaultHook: f.Do}), t.TempDir(), t.TempDir(), "gpu.nvidia.com")
	must(t, s.Write("u-1", []byte("a")))
	before := len(f.Seen())
	must(t, s.Write("u-1", []byte("a")))
	if n := len(f.Seen()); n > before {
		t.Errorf("%d operations for a spec that says it already", n-before)
	}
	must(t, s.Write("u-1", []byte("b")))
	if data, err := s.Read("u-1"); string(data) != "b" || err != nil {
		t.Errorf("a changed spec reads %q, %v", data, err)
	}
	for _, o := range f.Seen() {
		if o.Call == host.CallSync || o.Call == host.CallSyncDir {
			t.Errorf("%v: no boot but this one uses the spec", o)
		}
	}
}

func TestRemove_HoleBetweenMetadataFiles_RemovesAll(t *testing.T) {
	specs, dir := t.TempDir(), t.TempDir()
	s := store.New(host.New(host.Options{}), specs, dir, "gpu.nvidia.com")
	must(t, s.Write("u-1", []byte("a")))
	must(t, s.WriteMounted("u-10", store.Metadata(0), []byte("of another claim")))
	for i := range 12 {
		must(t, s.WriteMounted("u-1", store.Metadata(i), []byte("b")))
	}
	must(t, os.Remove(s.MountedPath("u-1", store.Metadata(4))))
	must(t, os.WriteFile(filepath.Join(dir, ".k8s.gpu.nvidia.com-claim_u-1.metadata-7.tmp"), nil, 0o600))
	if uids, err := s.UIDs(); err != nil || !cmp.Equal(uids, []string{"u-1", "u-10"}) {
		t.Error(uids, err)
	}
	if uids, err := s.Written(); err != nil || !cmp.Equal(uids, []string{"u-1"}) {
		t.Error(uids, err)
	}
	must(t, s.Remove("u-1"))
	if diff := cmp.Diff([]string{"k8s.gpu.nvidia.com-claim_u-10.metadata-0"}, append(names(t, specs), names(t, dir)...)); diff != "" {
		t.Error(diff)
	}
}

func TestParseMetadataName_OnlyExactNames_AreOfClaims(t *testing.T) {
	s := store.New(host.New(host.Options{}), "/cdi", "/state/mounted", "gpu.nvidia.com")
	name := func(i int) string { return filepath.Base(s.MountedPath("u-1", store.Metadata(i))) }
	for _, i := range []int{0, 31} {
		if uid, n, ok := s.ParseMetadataName(name(i)); uid != "u-1" || n != i || !ok {
			t.Errorf("%s, %d, %v", uid, n, ok)
		}
	}
	for _, other := range []string{
		"", "/", s.MountedPath("u-1", store.Metadata(1)), name(1) + "x", name(1) + "/", "k8s.other.com-claim_u-1.metadata-1", name(-1),
		filepath.Base(s.MountedPath("u-1", store.Topology)), strings.TrimSuffix(name(1), "1"), strings.TrimSuffix(name(1), "1") + "01",
		strings.TrimSuffix(name(1), "1") + "+1", "." + name(1) + ".tmp",
	} {
		if uid, n, ok := s.ParseMetadataName(other); ok {
			t.Errorf("%q is file %d of claim %q", other, n, uid)
		}
	}
}
