// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/testing/devicestatetest"
)

// viewed is a machine that counts the reads of records.
type viewed struct {
	*devicestatetest.Env
	*devicestatetest.Process
	reads int
}

// newView returns a machine whose clock is years before the times of its files, so that no change is too new.
func newView(t *testing.T) *viewed {
	v := &viewed{Env: devicestatetest.New(t)}
	v.ReadFile = func(path string) ([]byte, error) {
		if strings.HasPrefix(path, filepath.Join(v.StateDir, "records")) {
			v.reads++
		}
		return os.ReadFile(path)
	}
	v.Process = v.Start()
	return v
}

// tick returns once the clock of the records' file system has another time than their last change.
func (v *viewed) tick() {
	v.T.Helper()
	changed := func(path string) (latest unix.Timespec) {
		var st unix.Stat_t
		v.Must(unix.Stat(path, &st))
		return st.Ctim
	}
	records := filepath.Dir(v.RecordFile("a"))
	probe := filepath.Join(v.StateDir, "probe")
	for {
		v.Must(os.WriteFile(probe, nil, 0o600))
		now := changed(probe)
		v.Must(os.Remove(probe))
		if now != changed(records) && now != changed(filepath.Join(records, "../unknown")) {
			return
		}
	}
}

// look compares the View's list with the records, and returns the number of records that the View read.
func (v *viewed) look(step string) (reads int) {
	v.T.Helper()
	before := v.reads
	got, incomplete, err := v.View().Held()
	reads = v.reads - before
	want, wantIncomplete, wantErr := v.Held()
	if diff := cmp.Diff(want, got); diff != "" || incomplete != wantIncomplete || fmt.Sprint(err) != fmt.Sprint(wantErr) {
		v.T.Errorf("%s: incomplete %v, want %v; error %v, want %v (-records +view):\n%s", step, incomplete, wantIncomplete,
			err, wantErr, diff)
	}
	v.tick()
	return reads
}

// TestView_AnyChange_ListFollows makes each kind of change of a record, by this and by another process, and compares the
// lists after each.
func TestView_AnyChange_ListFollows(t *testing.T) {
	v := newView(t)
	other := v.Start()
	records := filepath.Dir(v.RecordFile("a"))
	refused := errors.New("refused")
	for _, uid := range []string{"a", "b", "c"} {
		v.SteppedClaim(uid, fmt.Sprint(int(uid[0]-'a')))
	}
	for _, step := range []struct {
		name string
		do   func()
		// kept means that the list stays for the next call.
		kept bool
	}{
		{"prepared", func() { v.Prepare(v.Process, "a") }, true},
		{"prepared by another process", func() { v.Prepare(other, "b") }, true},
		{"unprepared", func() { v.Unprepare(v.Process, "a") }, true},
		{"unprepared by another process", func() { v.Unprepare(other, "b") }, true},
		{"release fails", func() {
			v.Prepare(v.Process, "a")
			failing, err := v.StartWith(func(o host.Operation, act func() error) error {
				if o.Call == host.CallRemove {
					return refused
				}
				return act()
			})
			v.Must(err)
			defer failing.Crash()
			if err := failing.Unprepare(t.Context(), devicestatetest.ClaimID("a")); !errors.Is(err, refused) {
				t.Errorf("Unprepare: %v", err)
			}
		}, true},
		{"recovered", func() { v.Recover(other) }, true},
		{"record replaced by a damaged one", func() {
			v.Prepare(v.Process, "c")
			v.Must(os.WriteFile(v.RecordFile("c")+".new", []byte("noise"), 0o600))
			v.Must(os.Rename(v.RecordFile("c")+".new", v.RecordFile("c")))
		}, false},
		{"rebuilt from the spec", func() { v.Recover(other) }, true},
		{"record and spec gone", func() {
			v.Must(os.Remove(v.SpecFile("c")))
			v.Must(os.Remove(v.RecordFile("c")))
			v.LoseSteps("c")
		}, false},
		{"lost", func() { v.Recover(other) }, true},
		{"directory replaced", func() {
			v.Prepare(v.Process, "a")
			v.Must(os.Rename(records, records+".gone"))
			v.Must(os.Mkdir(records, 0o700))
			v.Must(os.Remove(v.SpecFile("a")))
		}, false},
		{"directory back", func() {
			v.Must(os.Remove(records))
			v.Must(os.Rename(records+".gone", records))
		}, true},
	} {
		step.do()
		v.look(step.name)
		if again := v.look(step.name + ", again"); (again == 0) != step.kept {
			t.Errorf("%s: a second Held reads %d records", step.name, again)
		}
	}
}

// TestView_RecordDamagedInPlace_SeenWithinTenMinutes damages a file without a change of its directory. A Prepare
// sees it at once.
func TestView_RecordDamagedInPlace_SeenWithinTenMinutes(t *testing.T) {
	v := newView(t)
	v.Claim("a", "0")
	v.Prepare(v.Process, "a")
	v.look("prepared")
	v.Damage("a")
	v.Must(os.Remove(v.SpecFile("a")))
	if _, incomplete, err := v.View().Held(); incomplete || err != nil {
		t.Errorf("before: %v, %v", incomplete, err)
	}
	v.Claim("b", "0")
	if _, err := v.Process.Prepare(t.Context(), v.Claims["b"]); err == nil {
		t.Error("another claim gets the device")
	}
	v.Now = v.Now.Add(10 * time.Minute)
	v.look("after ten minutes")
}

// TestView_ClaimsComeAndGo_ReadsNewRecordsOnly: a node with many claims has a change every few seconds.
func TestView_ClaimsComeAndGo_ReadsNewRecordsOnly(t *testing.T) {
	v := newView(t)
	for i, uid := range []string{"a", "b", "c", "d"} {
		v.Claim(uid, fmt.Sprint(i))
		v.Prepare(v.Process, uid)
		if reads := v.look(uid); reads != 1 {
			t.Errorf("Held beside a new record reads %d records", reads)
		}
	}
	v.Unprepare(v.Process, "b")
	if reads := v.look("b is gone"); reads != 0 {
		t.Errorf("Held after a release reads %d records", reads)
	}
	v.Now = v.Now.Add(10 * time.Minute)
	if reads := v.look("after ten minutes"); reads != 3 {
		t.Errorf("Held after ten minutes reads %d records", reads)
	}
}

// TestView_NewChange_ReadsAgain has a clock at which the records have just changed: another change can have the same
// time.
func TestView_NewChange_ReadsAgain(t *testing.T) {
	v := newView(t)
	v.Now = time.Now()
	for i, uid := range []string{"a", "b", "c", "d"} {
		v.Claim(uid, fmt.Sprint(i))
		v.Prepare(v.Process, uid)
		for range 2 {
			if _, _, err := v.View().Held(); err != nil {
				t.Fatal(err)
			}
			if reads := v.look(uid); reads <= i {
				t.Errorf("Held beside a new record reads %d records", reads)
			}
		}
	}
	v.Now = v.Now.Add(time.Hour)
	v.look("later")
	if reads := v.look("again"); reads > 0 {
		t.Errorf("a later Held reads %d records", reads)
	}
}
