// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
)

// TestPrepare_NotesDamaged_FindsHolders damages the notes that name the GPU's holder.
func TestPrepare_NotesDamaged_FindsHolders(t *testing.T) {
	for name, damage := range map[string]func(notes []byte) []byte{
		"empty":       func([]byte) []byte { return nil },
		"short":       func(notes []byte) []byte { return notes[:bytes.LastIndexByte(bytes.TrimSpace(notes), '\n')+1] },
		"without UID": func(notes []byte) []byte { return bytes.Replace(notes, []byte("\na\n"), []byte("\n\n\n"), 1) },
		"another UID": func(notes []byte) []byte { return bytes.Replace(notes, []byte("\na\n"), []byte("\nc\n"), 1) },
		"older": func(notes []byte) []byte {
			return bytes.Join([][]byte{[]byte("boot-1"), []byte("z"), nil}, []byte("\n"))
		},
		"unreadable": nil,
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.New(t)
			file, fails := e.StateDir+"/locks/gpu-"+e.Address(0), false
			e.ReadFile = func(path string) ([]byte, error) {
				if fails && path == file {
					return nil, &os.PathError{Op: "read", Path: path, Err: syscall.EIO}
				}
				return os.ReadFile(path)
			}
			p := e.Start()
			e.SteppedClaim("a", "0")
			e.Prepare(p, "a")
			notes, err := os.ReadFile(file)
			e.Must(err)
			if damage == nil {
				fails = true
			} else {
				e.Must(os.WriteFile(file, damage(notes), 0o600))
			}
			e.Claim("b", "0")
			e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
			e.Prepare(p, "a")
			e.CheckClean(p, "a")
			e.Unprepare(p, "a")
			fails = false
			e.CheckClean(p)
			e.Prepare(p, "b")
		})
	}
}

// TestRecord_Gone_SpecReplacesIt removes the record of a claim with effects.
func TestRecord_Gone_SpecReplacesIt(t *testing.T) {
	for name, do := range map[string]func(e *env, p *process){
		"prepare":   func(e *env, p *process) { e.Prepare(p, "a"); e.CheckClean(p, "a") },
		"recover":   func(e *env, p *process) { e.Recover(p); e.CheckClean(p, "a") },
		"unprepare": func(*env, *process) {},
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.New(t)
			p := e.Start()
			e.SteppedClaim("a", "0")
			e.Prepare(p, "a")
			e.Must(os.Remove(e.RecordFile("a")))
			e.Claim("b", "0")
			e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
			if !p.Incomplete() {
				t.Error("no Recover would restore the record")
			}
			do(e, p)
			e.Unprepare(p, "a")
			e.CheckClean(p)
			e.Prepare(p, "b")
		})
	}
}

// TestRecord_DirectoryGone_SpecStays removes all records while the plugin runs, so that none can be written again.
func TestRecord_DirectoryGone_SpecStays(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.SteppedClaim("a", "0")
	e.Prepare(p, "a")
	dir := filepath.Dir(e.RecordFile("a"))
	e.Must(os.Rename(dir, dir+".gone"))
	p.Engine.Recover(t.Context())
	if _, err := os.Stat(e.SpecFile("a")); err != nil {
		t.Errorf("the last copy of the plan is gone: %v", err)
	}
	e.Must(os.Rename(dir+".gone", dir))
	e.CheckClean(p, "a")
}

// TestRecord_ReadableAgain_ReplacesUnknown has a disk that fails to read a record for some time, without a CDI spec.
func TestRecord_ReadableAgain_ReplacesUnknown(t *testing.T) {
	for _, undoing := range []bool{false, true} {
		e := devicestatetest.New(t)
		p := e.Start()
		e.SteppedClaim("a", "0")
		e.Prepare(p, "a")
		p.Crash()
		file := e.RecordFile("a")
		if undoing {
			file = file[:len(file)-len("json")] + "undo"
			e.Must(os.Rename(e.RecordFile("a"), file))
		}
		bad, err := os.Stat(file)
		e.Must(err)
		e.Must(os.Remove(e.SpecFile("a")))
		fails := true
		e.ReadFile = func(path string) ([]byte, error) {
			if is, err := os.Stat(path); fails && err == nil && os.SameFile(bad, is) {
				return nil, &os.PathError{Op: "read", Path: path, Err: syscall.EIO}
			}
			return os.ReadFile(path)
		}
		p = e.Start()
		e.Recover(p)
		if _, incomplete, err := p.Held(); err != nil || !incomplete {
			t.Errorf("incomplete: %v, %v", incomplete, err)
		}
		fails = false
		e.Recover(p)
		if undoing {
			e.CheckClean(p)
			continue
		}
		e.CheckClean(p, "a")
		e.Unprepare(p, "a")
		e.CheckClean(p)
	}
}

// TestMissingSpecs_OtherRecordUnreadable_ReportsThem has a claim with neither a record nor a spec beside another's.
func TestMissingSpecs_OtherRecordUnreadable_ReportsThem(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	e.Damage("a")
	e.Must(os.Remove(e.SpecFile("a")))
	if missing, err := p.MissingSpecs(); err != nil || !missing {
		t.Errorf("specs missing: %v, %v", missing, err)
	}
	e.Claim("b", "0")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse)
	if !p.Incomplete() {
		t.Error("no Recover would rebuild the record")
	}
	e.Recover(p)
	if p.Incomplete() {
		t.Error("it is rebuilt, and incomplete")
	}
	if missing, err := p.MissingSpecs(); err != nil || missing {
		t.Errorf("specs missing after Recover: %v, %v", missing, err)
	}
}

// TestRecord_KeysBeforeRenaming_ClaimIsLookedUp starts on a node with a record and a spec whose plans have the keys of
// before their renaming.
func TestRecord_KeysBeforeRenaming_ClaimIsLookedUp(t *testing.T) {
	e := devicestatetest.New(t)
	e.Start() // It creates the directories.
	for from, to := range map[string]string{
		"../claim/record/testdata/early-keys.json": e.RecordFile("a"), "../cdi/testdata/early-keys.json": e.SpecFile("a"),
	} {
		data, err := os.ReadFile(from)
		e.Must(err)
		e.Must(os.WriteFile(to, data, 0o600))
	}
	p := e.Start()
	e.Claim("a", "0")
	e.Claim("b", "0")
	e.Recover(p)
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
	e.Must(e.Identify(p))
	e.Recover(p)
	e.CheckClean(p, "a")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
	e.Unprepare(p, "a")
	e.CheckClean(p)
	e.Prepare(p, "b")
}
