// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/devicestate/devicestatetest"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

func TestPrepareAnswersWhatTheRuntimeFinds(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	devices, err := p.Prepare(context.Background(), e.Claim("a", "1", "monitor 2"))
	e.Must(err)
	want := []string{"k8s.gpu.nvidia.com/claim=a-gpu-0000-11-00-0", "k8s.gpu.nvidia.com/claim=a-monitor-0000-12-00-0"}
	for i, d := range devices {
		if d.CDIDeviceID != want[i] || d.Request != []string{"r0", "r1"}[i] {
			t.Errorf("device %d: %+v", i, d)
		}
	}
	e.CheckClean(p, "a")
}

func TestSecondClaimOfAGPUIsRefusedUntilTheFirstIsReleased(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Claim("b", "1", "0")
	e.Claim("m", "monitor 0")
	e.Prepare(p, "a")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "gpu-0000-10-00-0", "default/claim-a", "UID a", "default/claim-b")
	e.Prepare(p, "m") // Watching is neither refused nor refuses.
	e.CheckClean(p, "a", "m")
	e.Unprepare(p, "a")
	e.Prepare(p, "b")
	e.Prepare(p, "b")
	e.CheckClean(p, "b", "m")
}

func TestWatcherDoesNotHoldItsGPU(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("m", "monitor 0", "monitor 1", "2")
	e.Claim("a", "0", "1")
	e.Prepare(p, "m")
	e.Prepare(p, "a")
	e.CheckClean(p, "a", "m")
	e.Claim("b", "2")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "gpu-0000-12-00-0")
}

func TestClaimMadeAgainUnderTheSameNameIsAnother(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	again := e.Claim("b", "0")
	again.Name = "claim-a"
	e.Prepare(p, "a")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
	e.Must(p.Unprepare(context.Background(), plan.Claim{Namespace: "default", Name: "claim-a", UID: "a"}))
	e.Prepare(p, "b")
	// The kubelet may end the first one once more; it is not the second.
	e.Must(p.Unprepare(context.Background(), plan.Claim{Namespace: "default", Name: "claim-a", UID: "a"}))
	e.CheckClean(p, "b")
}

func TestSameUIDWithAnotherAllocationIsPreparedAnew(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.SteppedClaim("a", "0")
	e.Prepare(p, "a")
	e.Allocate(e.Claims["a"], "1")
	devices, err := p.Prepare(context.Background(), e.Claims["a"])
	e.Must(err)
	if len(devices) != 1 || devices[0].PCIAddress != devicestatetest.Address(1) {
		t.Fatalf("devices %+v", devices)
	}
	e.CheckClean(p, "a")
	e.Claim("b", "0")
	e.Prepare(p, "b")
}

func TestClaimOfOtherDriversIsNoneOfOurs(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	c := e.Claim("a", "0")
	c.Status.Allocation.Devices.Results[0].Driver = "nic.example.com"
	devices, err := p.Prepare(context.Background(), c)
	if err != nil || len(devices) > 0 {
		t.Fatalf("%v, %v", devices, err)
	}
	e.CheckClean(p)
}

func TestUIDThatCannotNameAFile(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	for _, uid := range []string{"", "../../x", "a/b", strings.Repeat("a", 129)} {
		c := e.Claim("a", "0")
		c.UID = types.UID(uid)
		e.CheckRefused(p, "a", claimerror.Permanent, claimerror.InvalidAllocation, "UID")
		e.Must(p.Unprepare(context.Background(), plan.Claim{UID: uid}))
	}
	e.CheckClean(p)
}

func TestPrepareHeldPastItsDeadlineLeavesNothing(t *testing.T) {
	for _, label := range []host.Label{"test.apply-gate", store.LabelWrite, record.LabelIntent, record.LabelCommit} {
		t.Run(string(label), func(t *testing.T) {
			e := devicestatetest.New(t)
			g := hosttest.NewGate(label)
			p, err := e.StartWith(g.Do)
			e.Must(err)
			defer p.Crash()
			c := e.SteppedClaim("a", "0")
			ctx, cancel := context.WithCancel(context.Background())
			if label == "test.apply-gate" {
				// Held in the lock queue: another claim has the GPU's lock.
				lock, err := p.Host.Lock(context.Background(), e.StateDir+"/locks/gpu-"+devicestatetest.Address(0), 0)
				e.Must(err)
				close(g.Reached)
				go func() { <-g.Open; lock.Release() }()
			}
			prepared, ended := make(chan error, 1), make(chan error, 1)
			go func() { _, err := p.Prepare(ctx, c); prepared <- err }()
			<-g.Reached
			cancel()
			go func() { ended <- p.Unprepare(context.Background(), devicestatetest.ClaimID("a")) }()
			close(g.Open)
			err = <-prepared
			e.Must(<-ended)
			if err != nil {
				// The commit itself, once begun, may be answered; the Unprepare behind it undoes it.
				devicestatetest.CheckError(t, err, claimerror.Transient, claimerror.Interrupted, "context canceled")
			} else if label != record.LabelCommit {
				t.Error("Prepare answered a caller that had gone")
			}
			e.CheckClean(p)
		})
	}
}

func TestCallerWhoLeftDuringTheLocksGetsNothingDone(t *testing.T) {
	e := devicestatetest.New(t)
	ctx, cancel := context.WithCancel(context.Background())
	e.ReadFile = func(path string) ([]byte, error) {
		cancel() // The record is read once the claim's lock is held; a monitor has no other lock.
		return os.ReadFile(path)
	}
	f := hosttest.Trace()
	p, err := e.StartWith(f.Do)
	e.Must(err)
	defer p.Crash()
	f.Arm()
	_, err = p.Prepare(ctx, e.Claim("a", "monitor 0"))
	devicestatetest.CheckError(t, err, claimerror.Transient, claimerror.Interrupted, "context canceled")
	if seen := f.Seen(); len(seen) > 0 {
		t.Errorf("operations for a caller that had gone: %v", seen)
	}
}

func TestDiskAndDriverRootFailures(t *testing.T) {
	for _, test := range []struct {
		name string
		at   func(host.Operation) bool
		err  error
	}{
		{"CDI directory is read-only", func(o host.Operation) bool { return o.Label == store.LabelWrite }, syscall.EROFS},
		{"CDI directory is full", func(o host.Operation) bool { return o.Label == store.LabelWrite && o.Call == host.CallWrite }, syscall.ENOSPC},
		{"state directory is full", func(o host.Operation) bool { return o.Label == record.LabelCommit && o.Call == host.CallWrite }, syscall.ENOSPC},
		{"state directory is read-only", func(o host.Operation) bool { return strings.HasPrefix(string(o.Label), "record.") }, syscall.EROFS},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := devicestatetest.New(t)
			f := hosttest.FailAll(test.at, test.err)
			p, err := e.StartWith(f.Do)
			e.Must(err)
			defer p.Crash()
			e.Claim("a", "0")
			f.Arm()
			e.CheckRefused(p, "a", claimerror.Transient, claimerror.HostFailure, "default/claim-a", test.err.Error(), "node's disk")
			f.Disarm()
			e.Unprepare(p, "a")
			e.CheckClean(p)
			e.Prepare(p, "a")
			e.CheckClean(p, "a")
		})
	}
}

func TestPodEndsWhileTheDiskIsFull(t *testing.T) {
	e := devicestatetest.New(t)
	f := hosttest.FailAll(func(o host.Operation) bool {
		return o.Call == host.CallWrite || o.Call == host.CallNote || o.Call == host.CallMkdir
	}, syscall.ENOSPC)
	p, err := e.StartWith(f.Do)
	e.Must(err)
	defer p.Crash()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	f.Arm()
	e.Unprepare(p, "a")
	f.Disarm()
	e.CheckClean(p)
}

func TestDriverRootErrorIsToldAndNothingStays(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.SteppedClaim("a", "0")
	e.EditsErr = errors.New("libcuda.so.580.126.09 is not under the driver root")
	e.CheckRefused(p, "a", claimerror.Transient, claimerror.DriverNotReady, "libcuda.so", "nvidia-smi")
	e.CheckClean(p)
	e.EditsErr = nil
	e.Prepare(p, "a")
	// A running pod's claim is not torn down because the driver root is being replaced.
	e.EditsErr = errors.New("gone")
	e.CheckRefused(p, "a", claimerror.Transient, claimerror.DriverNotReady)
	e.CheckClean(p, "a")
}

func TestNVMLAbsent(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	e.Snapshot.Driver.Version, e.Snapshot.GPUs = "", nil
	e.CheckRefused(p, "a", claimerror.Transient, claimerror.DriverNotReady, "not loaded")
	e.CheckClean(p, "a")
	e.Unprepare(p, "a")
	e.CheckClean(p)
}

func TestBootIDUnreadable(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Must(os.WriteFile(e.BootFile, nil, 0o600))
	e.CheckRefused(p, "a", claimerror.Transient, claimerror.HostFailure, "boot ID")
	if _, err := p.Recover(context.Background()); err == nil {
		t.Error("Recover did without a boot ID")
	}
	e.NewBoot()
	e.Prepare(p, "a")
}

func TestFailureAfterARebootKeepsTheClaimsHold(t *testing.T) {
	for _, make := range []func(*env){
		func(e *env) { e.Claim("a", "0") },
		func(e *env) { e.SteppedClaim("a", "0") },
	} {
		e := devicestatetest.New(t)
		p := e.Start()
		make(e)
		e.Prepare(p, "a")
		e.Reboot(false)
		e.EditsErr = errors.New("not yet")
		e.CheckRefused(p, "a", claimerror.Transient, claimerror.DriverNotReady)
		e.CheckClean(p, "a")
		e.Claim("b", "0")
		e.EditsErr = nil
		e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
		e.Prepare(p, "a")
		e.CheckClean(p, "a")
	}
}

func TestHoldersAreFoundAfterAPowerCutTookTheNotes(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Claim("b", "0")
	e.Claim("c", "1")
	e.Prepare(p, "a")
	p.Crash()
	e.Reboot(false)
	e.Empty(e.StateDir+"/locks", "")
	p = e.Start() // Recover has not run yet.
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
	e.Prepare(p, "c")
	e.CheckClean(p, "a", "c")
}

func TestRecordOfALaterVersionsExecutorBlocksAndSaysSo(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.SteppedClaim("a", "0")
	e.Prepare(p, "a")
	p.Crash()
	e.Configure = func(o *devicestate.Options) { o.Executors = nil }
	p = e.Start()
	err := p.Unprepare(context.Background(), devicestatetest.ClaimID("a"))
	devicestatetest.CheckError(t, err, claimerror.Transient, claimerror.HostFailure, `"file"`, "install the version")
	findings, err := p.Recover(context.Background())
	e.Must(err)
	if len(findings) != 1 || findings[0].Err == nil {
		t.Fatalf("findings %+v", findings)
	}
	e.Claim("b", "0")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a, releasing")
	p.Crash()
	e.Configure = nil
	p = e.Start()
	e.Recover(p)
	e.CheckClean(p)
}

func TestLaterPlanOfOtherStepsDoesNotStrandThoseOfTheCommit(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	c := e.SteppedClaim("a", "0")
	e.Prepare(p, "a")
	c.Labels[devicestatetest.Stepped] = "upgraded"
	e.Prepare(p, "a")
	e.CheckClean(p, "a")
	e.Unprepare(p, "a")
	e.CheckClean(p)
}

func TestRecoverIsIdleWhereNothingIsWrong(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	twice(e, p)
	f := hosttest.Trace()
	q, err := e.StartWith(f.Do)
	e.Must(err)
	p.Crash()
	defer q.Crash()
	findings, err := q.Recover(context.Background())
	if err != nil || len(findings) > 0 {
		t.Fatalf("%+v, %v", findings, err)
	}
	lost, err := q.SpecsLost()
	if err != nil || lost {
		t.Fatalf("specs lost: %v, %v", lost, err)
	}
	e.Must(os.Remove(e.SpecFile("a")))
	if lost, err = q.SpecsLost(); err != nil || !lost {
		t.Fatalf("specs lost: %v, %v", lost, err)
	}
	findings, err = q.Recover(context.Background())
	if err != nil || len(findings) != 1 || findings[0].Did != "spec written again" {
		t.Fatalf("%+v, %v", findings, err)
	}
	e.Reboot(false)
	if lost, err = q.SpecsLost(); err != nil || lost {
		t.Fatalf("specs lost in another boot: %v, %v", lost, err)
	}
}

func TestRecoverStopsWhenItsCallerDoes(t *testing.T) {
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

func TestOpenFailsWhereTheStateDirectoryCannotBe(t *testing.T) {
	e := devicestatetest.New(t)
	e.Must(os.WriteFile(e.Dir+"/plugin", nil, 0o600))
	if _, err := e.StartWith(hosttest.Trace().Do); err == nil || !strings.Contains(err.Error(), e.StateDir) {
		t.Errorf("Open: %v", err)
	}
	if _, err := devicestate.Open(devicestate.Options{Host: host.New(host.Options{}), Dir: "/proc/nothing"}); err == nil {
		t.Error("Open in /proc")
	}
}

func TestSpecOfAnEarlierBootIsRemovedAndItsClaimKept(t *testing.T) {
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
