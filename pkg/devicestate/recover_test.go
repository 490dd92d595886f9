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
	"time"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
)

func TestRecover_NothingWrong_FindsNothing(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	bothPrepared(e, p)
	f := hosttest.Trace()
	q, err := e.StartWith(f.Do)
	e.Must(err)
	p.Crash()
	defer q.Crash()
	findings, err := q.Recover(context.Background())
	if err != nil || len(findings) > 0 {
		t.Fatalf("%+v, %v", findings, err)
	}
	lost, err := q.MissingSpecs()
	if err != nil || lost {
		t.Fatalf("specs lost: %v, %v", lost, err)
	}
	e.Must(os.Remove(e.SpecFile("a")))
	if lost, err = q.MissingSpecs(); err != nil || !lost {
		t.Fatalf("specs lost: %v, %v", lost, err)
	}
	findings, err = q.Recover(context.Background())
	if err != nil || len(findings) != 1 || findings[0].Did != "spec rewritten" {
		t.Fatalf("%+v, %v", findings, err)
	}
	e.Reboot(false)
	if lost, err = q.MissingSpecs(); err != nil || lost {
		t.Fatalf("specs lost in another boot: %v, %v", lost, err)
	}
}

func TestRecover_CallerLeaves_Stops(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	if _, err := p.Recover(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Recover: %v", err)
	}
	if err := p.Unprepare(ctx, devicestatetest.ClaimID("a")); claimerror.ReasonOf(err) != claimerror.Interrupted {
		t.Errorf("Unprepare: %v", err)
	}
}

func TestRecover_SpecOfEarlierBoot_RemovesSpecKeepsClaim(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	e.Reboot(true)
	findings, err := p.Recover(context.Background())
	e.Must(err)
	if len(findings) != 1 || findings[0].Err != nil || findings[0].Claim.UID != "a" {
		t.Errorf("findings %+v", findings)
	}
	if _, err := os.Stat(e.SpecFile("a")); !errors.Is(err, os.ErrNotExist) {
		t.Error("devices by the numbers of another boot can still be injected:", err)
	}
	e.CheckClean(p, "a")
	e.Snapshot.GPUs[0].Minor = 5
	devices, err := p.Prepare(context.Background(), e.Claims["a"])
	e.Must(err)
	if devices[0].Minor != 5 {
		t.Errorf("%+v", devices)
	}
	e.CheckClean(p, "a")
}

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

func TestRecover_UnreadableRecord_RebuildsOrBlocks(t *testing.T) {
	for name, damage := range damages {
		for _, specToo := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, spec lost %v", name, specToo), func(t *testing.T) {
				e := devicestatetest.New(t)
				first := e.Start()
				e.Claim("z", "3")
				e.Prepare(first, "z")
				// A claim had GPU 1 in this boot, so its notes exist but contain no UID.
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

func TestRecover_SpecWithoutItsPlan_DoesNotRebuild(t *testing.T) {
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

func TestRecover_StrayFileAmongRecords_LeftAlone(t *testing.T) {
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

func TestMissingSpecs_FilesBesideTheSpec_SpecIsMissing(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.GroupClaim("a", 0, 2)
	e.Prepare(p, "a")
	e.Must(os.Remove(e.SpecFile("a")))
	if lost, err := p.MissingSpecs(); err != nil || !lost {
		t.Errorf("specs lost: %v, %v", lost, err)
	}
}
