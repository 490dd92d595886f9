// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"gpu-dra-driver/pkg/claimerror"
)

// damages are the ways a record can come to be unreadable.
var damages = map[string]func(w *world, file string){
	"empty":     func(w *world, file string) { w.must(os.WriteFile(file, nil, 0o600)) },
	"noise":     func(w *world, file string) { w.must(os.WriteFile(file, []byte("\x00\xff{]"), 0o600)) },
	"truncated": func(w *world, file string) { w.must(os.Truncate(file, 200)) },
	"bit rot":   func(w *world, _ string) { w.damage("a") },
	"another version": func(w *world, file string) {
		data, err := os.ReadFile(file)
		w.must(err)
		w.must(os.WriteFile(file, []byte(strings.Replace(string(data), `"version":1`, `"version":2`, 1)), 0o600))
	},
	"another claim's": func(w *world, file string) {
		data, err := os.ReadFile(w.recordFile("z"))
		w.must(err)
		w.must(os.WriteFile(file, data, 0o600))
	},
	"bad sector": func(w *world, file string) {
		info, err := os.Stat(file)
		w.must(err)
		w.read = func(path string) ([]byte, error) {
			if now, err := os.Stat(path); err == nil && os.SameFile(info, now) {
				return nil, &os.PathError{Op: "read", Path: path, Err: syscall.EIO}
			}
			return os.ReadFile(path)
		}
	},
}

func TestUnreadableRecord(t *testing.T) {
	for name, damage := range damages {
		for _, specToo := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, spec lost %v", name, specToo), func(t *testing.T) {
				w := newWorld(t)
				first := w.run()
				w.claim("z", 3)
				w.prepare(first, "z")
				// GPU 1 was somebody's in this boot, so that its notes are there and name nobody.
				w.claim("y", 1)
				w.prepare(first, "y")
				w.must(first.Unprepare(context.Background(), claimOf("y")))
				w.steppedClaim("a", 0)
				w.prepare(first, "a")
				first.host.Close()
				damage(w, w.recordFile("a"))
				if specToo {
					w.must(os.Remove(w.specFile("a")))
				}
				p := w.run()
				// Even before anyone has looked, the devices are not given away.
				w.claim("b", 0)
				w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse)
				w.must(recovers(w, p))
				if n, err := p.Quarantined(); n != 1 || err != nil {
					t.Errorf("%d files in quarantine, %v", n, err)
				}
				if len(w.reports) != 1 || claimerror.ReasonOf(w.reports[0]) != claimerror.RecordUnreadable {
					t.Fatalf("reports %v", w.reports)
				}
				w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse)
				w.claim("c", 1)
				_, blind, err := p.Held()
				w.must(err)
				if blind != specToo {
					t.Errorf("blind: %v", blind)
				}
				if specToo {
					w.refused(p, "c", claimerror.Transient, claimerror.DeviceInUse, "claim UID a")
					w.prepare(p, "z") // A healthy record accounts for its GPU.
					if p.Check() == nil {
						t.Error("Check sees nothing in an unknown record")
					}
				} else {
					w.prepare(p, "c")
					w.must(p.Unprepare(context.Background(), claimOf("c")))
				}
				// The claim's own Prepare knows from the allocation what it holds, and breaks nothing that runs.
				w.prepare(p, "a")
				w.clean(p, "a", "z")
				w.must(p.Unprepare(context.Background(), claimOf("a")))
				w.clean(p, "z")
				w.prepare(p, "b")
			})
		}
	}
}

func TestIdentifyFindsWhatUnknownClaimsHold(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.steppedClaim("a", 0)
	w.prepare(p, "a")
	w.claim("g", 2)
	w.prepare(p, "g")
	for _, uid := range []string{"a", "g"} {
		w.damage(uid)
		w.must(os.Remove(w.specFile(uid)))
	}
	w.must(recovers(w, p))
	s := &server{w: w, down: errors.New("connection refused")}
	findings, err := p.Identify(context.Background(), s)
	w.must(err)
	for _, f := range findings {
		if f.Err == nil || f.Did != "" {
			t.Errorf("found without the API server: %+v", f)
		}
	}
	s.down = nil
	delete(w.claims, "g")
	if err := identifies(w, p); err != nil {
		t.Fatal(err)
	}
	w.claim("b", 1)
	w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID g") // Gone is for Vanished, not for Identify.
	w.must(p.Unprepare(context.Background(), claimOf("g")))
	w.must(recovers(w, p))
	w.clean(p, "a")
	w.prepare(p, "b")
	w.claim("c", 0)
	w.refused(p, "c", claimerror.Transient, claimerror.DeviceInUse, "UID a")
}

func TestIdentifyReleasesWhatHoldsNothing(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.claim("a", 0)
	w.prepare(p, "a")
	w.damage("a")
	w.must(os.Remove(w.specFile("a")))
	w.must(recovers(w, p))
	allocate(w.claims["a"])
	w.must(identifies(w, p))
	w.clean(p)
}

func TestIdentifyTellsWhyItCannotPlan(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.claim("a", 0)
	w.prepare(p, "a")
	w.damage("a")
	w.must(os.Remove(w.specFile("a")))
	w.must(recovers(w, p))
	w.snapshot.GPUs, w.snapshot.Driver.Version = nil, ""
	if err := identifies(w, p); claimerror.ReasonOf(err) != claimerror.DriverNotReady {
		t.Error(err)
	}
}

func TestClaimsThatAreBothUnknownDoNotBlockEachOther(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	for i, uid := range []string{"a", "b"} {
		w.claim(uid, i)
		w.prepare(p, uid)
	}
	for _, uid := range []string{"a", "b"} {
		w.damage(uid)
		w.must(os.Remove(w.specFile(uid)))
	}
	w.must(recovers(w, p))
	w.prepare(p, "a")
	w.prepare(p, "b")
	w.clean(p, "a", "b")
}

func TestSpecOfAnotherClaimDoesNotRebuildARecord(t *testing.T) {
	for name, text := range map[string]string{
		"noise": "{", "no plan": `{"cdiVersion":"0.6.0"}`,
		"another claim's": `{"annotations":{"k8s.gpu.nvidia.com/plan":"{\"claim\":{\"uid\":\"z\"}}"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.run()
			w.claim("a", 0)
			w.prepare(p, "a")
			w.damage("a")
			w.must(os.WriteFile(w.specFile("a"), []byte(text), 0o600))
			w.must(recovers(w, p))
			if _, blind, _ := p.Held(); !blind {
				t.Error("taken for a plan")
			}
			w.must(p.Unprepare(context.Background(), claimOf("a")))
			w.clean(p)
		})
	}
}

func TestStrayFilesAmongRecordsAreLeftAlone(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.claim("a", 0)
	w.prepare(p, "a")
	stray := w.state + "/records/claims/copy of a.json"
	w.must(os.WriteFile(stray, []byte("x"), 0o600))
	w.must(recovers(w, p))
	w.clean(p, "a")
	if _, err := os.Stat(stray); err != nil {
		t.Error(err)
	}
}

func TestCheckSeesWhatMustNotBe(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(w *world, p process)
		says  string
	}{
		"no spec":         {func(w *world, _ process) { w.must(os.Remove(w.specFile("a"))) }, "has no CDI spec"},
		"another spec":    {func(w *world, _ process) { w.must(os.WriteFile(w.specFile("a"), []byte("{}"), 0o600)) }, "lacks device gpu-0000-10-00-0"},
		"orphan spec":     {func(w *world, _ process) { w.must(os.Remove(w.recordFile("a"))) }, "has a CDI spec and no record"},
		"unreadable":      {func(w *world, _ process) { w.damage("a") }, "is unreadable"},
		"unfinished":      {func(w *world, _ process) { w.must(os.WriteFile(w.state+"/records/claims/.q.json.tmp", nil, 0o600)) }, "unfinished"},
		"two owners":      {twoOwners, "is held by claim default/claim-a and claim default/claim-b"},
		"boot ID missing": {func(w *world, _ process) { w.must(os.Remove(w.bootFile)) }, "boot ID"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.run()
			w.claim("a", 0)
			w.prepare(p, "a")
			w.must(p.Check())
			test.spoil(w, p)
			if err := p.Check(); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
		})
	}
}

func twoOwners(w *world, p process) {
	saved, err := os.ReadFile(w.recordFile("a"))
	w.must(err)
	w.must(os.Remove(w.recordFile("a")))
	w.claim("b", 0)
	w.prepare(p, "b")
	w.must(os.WriteFile(w.recordFile("a"), saved, 0o600))
}

func TestPreparedClaimIsNotHeldUpByWhatNobodyCanRead(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	for i, uid := range []string{"a", "b"} {
		w.claim(uid, i)
		w.prepare(p, uid)
	}
	w.damage("a")
	p.host.Close()
	w.empty(w.state+"/locks", "") // Nothing says any more that a is not on b's GPU, except b's own record.
	p = w.run()
	w.prepare(p, "b")
	w.claim("c", 2)
	w.refused(p, "c", claimerror.Transient, claimerror.DeviceInUse, "record of claim a")
	// What b wrote down did not drop a, which may yet turn out to be anywhere.
	w.must(p.Unprepare(context.Background(), claimOf("b")))
	w.claim("d", 1)
	w.refused(p, "d", claimerror.Transient, claimerror.DeviceInUse, "record of claim a")
	w.must(recovers(w, p))
	w.prepare(p, "d")
	w.clean(p, "a", "d")
}
