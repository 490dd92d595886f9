// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/pkg/claim/plan"
)

func open(t *testing.T) (*Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "records")
	s, err := Open(host.New(host.Options{}), dir)
	if err != nil {
		t.Fatal(err)
	}
	return s, dir
}

func of(uid string, state State) Record {
	return Record{State: state, BootID: "b", Plan: plan.Plan{Claim: plan.Claim{UID: uid}}}
}

func put(t *testing.T, s *Store, r Record) {
	t.Helper()
	if err := s.Put(r); err != nil {
		t.Fatal(err)
	}
}

func TestStore_PutAndRemove_ReplaceAndForget(t *testing.T) {
	s, _ := open(t)
	if _, err := s.Get("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for _, state := range []State{Intent, Committed, Unknown, Committed, Unknown} {
		put(t, s, of("a", state))
		if r, err := s.Get("a"); err != nil || r.State != state {
			t.Errorf("%+v, %v, want %s", r, err, state)
		}
		uids, err := s.Unknown()
		if d := cmp.Diff(map[bool][]string{true: {"a"}}[state == Unknown], uids); d != "" || err != nil {
			t.Error(state, d, err)
		}
		if uids, err := s.UIDs(); len(uids) != 1 || err != nil {
			t.Error(uids, err)
		}
	}
	for range 2 {
		if err := s.Remove("a"); err != nil {
			t.Fatal(err)
		}
	}
	if uids, err := s.UIDs(); len(uids) > 0 || err != nil {
		t.Error(uids, err)
	}
}

// TestPut_OnlyANewIntent_SavesTheSyncOfItsDirectory: each Prepare waits for these syncs.
func TestPut_OnlyANewIntent_SavesTheSyncOfItsDirectory(t *testing.T) {
	syncs := map[host.Call]int{}
	s, err := Open(host.New(host.Options{FaultHook: func(o host.Operation, do func() error) error {
		syncs[o.Call]++
		return do()
	}}), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	renews := of("b", Intent)
	renews.Renews = "b"
	for _, tc := range []struct {
		r    Record
		want int
	}{{of("a", Intent), 0}, {of("a", Committed), 1}, {of("b", Committed), 1}, {renews, 1}, {of("c", Unknown), 1}} {
		clear(syncs)
		put(t, s, tc.r)
		if syncs[host.CallSyncDir] != tc.want || syncs[host.CallSync] != 1 {
			t.Errorf("%s of %s: %v, want %d syncs of the directory", tc.r.State, tc.r.Plan.Claim.UID, syncs, tc.want)
		}
	}
}

func TestUndo_CommittedRecord_BecomesIntentUntilPut(t *testing.T) {
	s, dir := open(t)
	r := of("a", Committed)
	r.Renews = "b0"
	put(t, s, r)
	for range 2 {
		if err := s.Undo("a"); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Get("a"); err != nil || r.State != Intent || r.Renews != "" || r.BootID != "b" {
			t.Errorf("%+v, %v", r, err)
		}
		if uids, err := s.UIDs(); len(uids) != 1 || err != nil {
			t.Error(uids, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "claims/a.undo"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("a"); !errors.Is(err, ErrUnreadable) {
		t.Error(err)
	}
	if _, err := s.SetAside("a"); err != nil {
		t.Error(err)
	}
	put(t, s, of("a", Unknown))
	if r, err := s.Get("a"); err != nil || r.State != Unknown {
		t.Errorf("%+v, %v", r, err)
	}
	if err := s.Remove("a"); err != nil {
		t.Error(err)
	}
	if uids, err := s.UIDs(); len(uids) > 0 || err != nil {
		t.Error(uids, err)
	}
}

func TestValidUID_PathCharacters_AreRefused(t *testing.T) {
	s, dir := open(t)
	outside := filepath.Join(filepath.Dir(dir), "x.json")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"", "../../x", "..", "a/b", "a.b", "ä", "a b", strings.Repeat("a", 129)} {
		if ValidUID(uid) {
			t.Errorf("%q is a UID", uid)
		}
		if err := s.Put(of(uid, Committed)); err == nil {
			t.Errorf("%q was written", uid)
		}
		if _, err := s.Get(uid); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", uid, err)
		}
		if err := errors.Join(s.Remove(uid), s.RemoveUnfinished(uid)); err != nil {
			t.Errorf("%q: %v", uid, err)
		}
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
	if !ValidUID("6b2ab9f4-15c5-4e3e-8d7a-3a0a5d5c3f10") {
		t.Error("an API server's UID is none")
	}
}

func TestAll_UnreadableRecords_AreListedApart(t *testing.T) {
	s, dir := open(t)
	put(t, s, of("a", Committed))
	put(t, s, of("b", Unknown))
	put(t, s, of("c", Committed))
	for name, text := range map[string]string{"claims/c.json": "x", "claims/.d.json.tmp": "", "claims/notes.txt": "", "claims/e f.json": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	records, unreadable, err := s.All()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range records {
		got = append(got, r.Plan.Claim.UID)
	}
	if d := cmp.Diff([]string{"a", "b"}, got) + cmp.Diff([]string{"c"}, unreadable); d != "" {
		t.Error(d)
	}
	uids, err := s.UIDs()
	if d := cmp.Diff([]string{"a", "b", "c", "d"}, uids); d != "" || err != nil {
		t.Error(d, err)
	}
	if err := s.RemoveUnfinished("d"); err != nil {
		t.Error(err)
	}
	if uids, _ := s.UIDs(); len(uids) != 3 {
		t.Error(uids)
	}
}

func TestSetAside_UnreadableRecord_StaysUntilReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "records")
	// The clock stands, as it can seem to after it was set back.
	s, err := Open(host.New(host.Options{Now: func() time.Time { return time.Unix(0, 0) }}), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.SetAside("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for _, where := range []string{"claims", "unknown"} {
		path := filepath.Join(dir, where, "a.json")
		if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		aside, err := s.SetAside("a")
		if err != nil {
			t.Fatal(err)
		}
		if again, err := s.SetAside("a"); again != aside || err != nil {
			t.Errorf("set aside again in %q, %v", again, err)
		}
		for _, p := range []string{aside, path} {
			if data, err := os.ReadFile(p); err != nil || string(data) != "damaged" {
				t.Errorf("%s: %q, %v", p, data, err)
			}
		}
		put(t, s, of("a", Unknown))
		if data, _ := os.ReadFile(aside); string(data) != "damaged" {
			t.Errorf("%q", data)
		}
		if err := s.Remove("a"); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.Quarantined(); n != 2 || err != nil {
		t.Error(n, err)
	}
}

func TestUnknown_KnownRecordOfTheSameClaim_IsNotListed(t *testing.T) {
	s, dir := open(t)
	put(t, s, of("a", Unknown))
	saved, err := os.ReadFile(filepath.Join(dir, "unknown", "a.json"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, of("a", Committed))
	if err := os.WriteFile(filepath.Join(dir, "unknown", "a.json"), saved, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Get("a"); err != nil || r.State != Committed {
		t.Error(r, err)
	}
	if uids, err := s.Unknown(); len(uids) > 0 || err != nil {
		t.Error(uids, err)
	}
}

func TestStore_UnusableDirectory_ReturnsError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(host.New(host.Options{}), filepath.Join(file, "records")); err == nil {
		t.Error("opened below a file")
	}
	s, dir := open(t)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"claims", "unknown"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, sub), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.UIDs(); err == nil {
			t.Error("listed", sub)
		}
		if _, _, err := s.All(); err == nil {
			t.Error("read", sub)
		}
		if err := os.RemoveAll(filepath.Join(dir, "claims")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Unknown(); err == nil {
		t.Error("listed the unknown")
	}
	if err := s.Put(of("a", Committed)); err == nil {
		t.Error("written")
	}
	if err := s.Confirm(); err == nil {
		t.Error("confirmed")
	}
}

func TestGet_RecordMovesMeanwhile_IsFound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "records")
	var move func(path string)
	s, err := Open(host.New(host.Options{ReadFile: func(path string) ([]byte, error) {
		data, err := os.ReadFile(path)
		move(path)
		return data, err
	}}), dir)
	if err != nil {
		t.Fatal(err)
	}
	writer, err := Open(host.New(host.Options{}), dir)
	if err != nil {
		t.Fatal(err)
	}
	put(t, writer, of("a", Unknown))
	reads := 0
	move = func(string) {
		if reads++; reads == 1 {
			put(t, writer, of("a", Committed)) // It was not in claims and is no longer in unknown.
		}
	}
	if r, err := s.Get("a"); err != nil || r.State != Committed {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRemove_Interrupted_NeverLeavesTheUnknownRecordAlone(t *testing.T) {
	for n := range 8 {
		dir := filepath.Join(t.TempDir(), "records")
		f := hosttest.At(n, hosttest.CrashBefore)
		s, err := Open(host.New(host.Options{FaultHook: f.Do}), dir)
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, of("a", Unknown))
		data, err := os.ReadFile(filepath.Join(dir, "unknown", "a.json"))
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, of("a", Committed))
		// A crash came before the commit had removed the other.
		if err := os.WriteFile(filepath.Join(dir, "unknown", "a.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		f.Arm()
		_, _ = hosttest.Run(func() error { return s.Remove("a") })
		if r, err := s.Get("a"); err == nil && r.State == Unknown {
			t.Errorf("interrupted at operation %d, it blocks the node", n)
		}
	}
}
