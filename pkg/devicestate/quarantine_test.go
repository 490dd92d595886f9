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
	"gpu-dra-driver/pkg/devicestate/devicestatetest"
)

// damages are the ways a record can come to be unreadable.
var damages = map[string]func(e *env, file string){
	"empty":     func(e *env, file string) { e.Must(os.WriteFile(file, nil, 0o600)) },
	"noise":     func(e *env, file string) { e.Must(os.WriteFile(file, []byte("\x00\xff{]"), 0o600)) },
	"truncated": func(e *env, file string) { e.Must(os.Truncate(file, 200)) },
	"bit rot":   func(e *env, _ string) { e.Damage("a") },
	"another version": func(e *env, file string) {
		data, err := os.ReadFile(file)
		e.Must(err)
		e.Must(os.WriteFile(file, []byte(strings.Replace(string(data), `"version":1`, `"version":2`, 1)), 0o600))
	},
	"another claim's": func(e *env, file string) {
		data, err := os.ReadFile(e.RecordFile("z"))
		e.Must(err)
		e.Must(os.WriteFile(file, data, 0o600))
	},
	"bad sector": func(e *env, file string) {
		info, err := os.Stat(file)
		e.Must(err)
		e.ReadFile = func(path string) ([]byte, error) {
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
				e := devicestatetest.New(t)
				first := e.Start()
				e.Claim("z", "3")
				e.Prepare(first, "z")
				// GPU 1 was somebody's in this boot, so that its notes are there and name nobody.
				e.Claim("y", "1")
				e.Prepare(first, "y")
				e.Unprepare(first, "y")
				e.SteppedClaim("a", "0")
				e.Prepare(first, "a")
				first.Crash()
				damage(e, e.RecordFile("a"))
				if specToo {
					e.Must(os.Remove(e.SpecFile("a")))
				}
				p := e.Start()
				// Even before anyone has looked, the devices are not given away.
				e.Claim("b", "0")
				e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse)
				e.Recover(p)
				if n, err := p.Quarantined(); n != 1 || err != nil {
					t.Errorf("%d files in quarantine, %v", n, err)
				}
				if len(e.Reports) != 1 || claimerror.ReasonOf(e.Reports[0]) != claimerror.RecordUnreadable {
					t.Fatalf("reports %v", e.Reports)
				}
				e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse)
				e.Claim("c", "1")
				_, incomplete, err := p.Held()
				e.Must(err)
				if incomplete != specToo {
					t.Errorf("incomplete: %v", incomplete)
				}
				if specToo {
					e.CheckRefused(p, "c", claimerror.Transient, claimerror.DeviceInUse, "claim UID a")
					e.Prepare(p, "z") // A healthy record accounts for its GPU.
					if p.Check() == nil {
						t.Error("Check sees nothing in an unknown record")
					}
				} else {
					e.Prepare(p, "c")
					e.Unprepare(p, "c")
				}
				// The claim's own Prepare knows from the allocation what it holds, and breaks nothing that runs.
				e.Prepare(p, "a")
				e.CheckClean(p, "a", "z")
				e.Unprepare(p, "a")
				e.CheckClean(p, "z")
				e.Prepare(p, "b")
			})
		}
	}
}

func TestIdentifyFindsWhatUnknownClaimsHold(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.SteppedClaim("a", "0")
	e.Prepare(p, "a")
	e.Claim("g", "2")
	e.Prepare(p, "g")
	for _, uid := range []string{"a", "g"} {
		e.Damage(uid)
		e.Must(os.Remove(e.SpecFile(uid)))
	}
	e.Recover(p)
	s := &devicestatetest.APIServer{Env: e, Down: errors.New("connection refused")}
	findings, err := p.Identify(context.Background(), s)
	e.Must(err)
	for _, f := range findings {
		if f.Err == nil || f.Did != "" {
			t.Errorf("found without the API server: %+v", f)
		}
	}
	s.Down = nil
	delete(e.Claims, "g")
	if err := e.Identify(p); err != nil {
		t.Fatal(err)
	}
	e.Claim("b", "1")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID g") // Gone is for Vanished, not for Identify.
	e.Unprepare(p, "g")
	e.Recover(p)
	e.CheckClean(p, "a")
	e.Prepare(p, "b")
	e.Claim("c", "0")
	e.CheckRefused(p, "c", claimerror.Transient, claimerror.DeviceInUse, "UID a")
}

func TestIdentifyReleasesWhatHoldsNothing(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	e.Damage("a")
	e.Must(os.Remove(e.SpecFile("a")))
	e.Recover(p)
	e.Allocate(e.Claims["a"])
	e.Must(e.Identify(p))
	e.CheckClean(p)
}

func TestIdentifyTellsWhyItCannotPlan(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	e.Damage("a")
	e.Must(os.Remove(e.SpecFile("a")))
	e.Recover(p)
	e.Snapshot.GPUs, e.Snapshot.Driver.Version = nil, ""
	if err := e.Identify(p); claimerror.ReasonOf(err) != claimerror.DriverNotReady {
		t.Error(err)
	}
}

func TestClaimsThatAreBothUnknownDoNotBlockEachOther(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	for i, uid := range []string{"a", "b"} {
		e.Claim(uid, fmt.Sprint(i))
		e.Prepare(p, uid)
	}
	for _, uid := range []string{"a", "b"} {
		e.Damage(uid)
		e.Must(os.Remove(e.SpecFile(uid)))
	}
	e.Recover(p)
	e.Prepare(p, "a")
	e.Prepare(p, "b")
	e.CheckClean(p, "a", "b")
}

func TestSpecOfAnotherClaimDoesNotRebuildARecord(t *testing.T) {
	for name, text := range map[string]string{
		"noise": "{", "no plan": `{"cdiVersion":"0.6.0"}`,
		"another claim's": `{"annotations":{"k8s.gpu.nvidia.com/plan":"{\"claim\":{\"uid\":\"z\"}}"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.New(t)
			p := e.Start()
			e.Claim("a", "0")
			e.Prepare(p, "a")
			e.Damage("a")
			e.Must(os.WriteFile(e.SpecFile("a"), []byte(text), 0o600))
			e.Recover(p)
			if _, incomplete, _ := p.Held(); !incomplete {
				t.Error("taken for a plan")
			}
			e.Unprepare(p, "a")
			e.CheckClean(p)
		})
	}
}

func TestStrayFilesAmongRecordsAreLeftAlone(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	stray := e.StateDir + "/records/claims/copy of a.json"
	e.Must(os.WriteFile(stray, []byte("x"), 0o600))
	e.Recover(p)
	e.CheckClean(p, "a")
	if _, err := os.Stat(stray); err != nil {
		t.Error(err)
	}
}

func TestCheckSeesWhatMustNotBe(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(e *env, p *process)
		says  string
	}{
		"no spec": {func(e *env, _ *process) { e.Must(os.Remove(e.SpecFile("a"))) }, "has no CDI spec"},
		"another spec": {func(e *env, _ *process) {
			e.Must(os.WriteFile(e.SpecFile("a"), []byte("{}"), 0o600))
		}, "lacks device gpu-0000-10-00-0"},
		"orphan spec": {func(e *env, _ *process) { e.Must(os.Remove(e.RecordFile("a"))) }, "has a CDI spec and no record"},
		"unreadable":  {func(e *env, _ *process) { e.Damage("a") }, "is unreadable"},
		"unfinished": {func(e *env, _ *process) {
			e.Must(os.WriteFile(e.StateDir+"/records/claims/.q.json.tmp", nil, 0o600))
		}, "unfinished"},
		"two owners":      {twoOwners, "is held by claim default/claim-a and claim default/claim-b"},
		"boot ID missing": {func(e *env, _ *process) { e.Must(os.Remove(e.BootFile)) }, "boot ID"},
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.New(t)
			p := e.Start()
			e.Claim("a", "0")
			e.Prepare(p, "a")
			e.Must(p.Check())
			test.spoil(e, p)
			if err := p.Check(); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
		})
	}
}

func twoOwners(e *env, p *process) {
	saved, err := os.ReadFile(e.RecordFile("a"))
	e.Must(err)
	e.Must(os.Remove(e.RecordFile("a")))
	e.Claim("b", "0")
	e.Prepare(p, "b")
	e.Must(os.WriteFile(e.RecordFile("a"), saved, 0o600))
}

func TestPreparedClaimIsNotHeldUpByWhatNobodyCanRead(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	for i, uid := range []string{"a", "b"} {
		e.Claim(uid, fmt.Sprint(i))
		e.Prepare(p, uid)
	}
	e.Damage("a")
	p.Crash()
	e.Empty(e.StateDir+"/locks", "") // Nothing says any more that a is not on b's GPU, except b's own record.
	p = e.Start()
	e.Prepare(p, "b")
	e.Claim("c", "2")
	e.CheckRefused(p, "c", claimerror.Transient, claimerror.DeviceInUse, "record of claim a")
	// What b wrote down did not drop a, which may yet turn out to be anywhere.
	e.Unprepare(p, "b")
	e.Claim("d", "1")
	e.CheckRefused(p, "d", claimerror.Transient, claimerror.DeviceInUse, "record of claim a")
	e.Recover(p)
	e.Prepare(p, "d")
	e.CheckClean(p, "a", "d")
}
