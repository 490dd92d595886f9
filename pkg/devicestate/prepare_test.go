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
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// refused tests an error's kind, reason and what its text must tell.
func refused(t *testing.T, err error, kind claimerror.Kind, reason claimerror.Reason, says ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if claimerror.KindOf(err) != kind || claimerror.ReasonOf(err) != reason {
		t.Errorf("%s %s, want %s %s: %v", claimerror.KindOf(err), claimerror.ReasonOf(err), kind, reason, err)
	}
	for _, s := range append(says, "; ") {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
}

func (w *world) refused(p process, uid string, kind claimerror.Kind, reason claimerror.Reason, says ...string) {
	w.t.Helper()
	devices, err := p.Prepare(context.Background(), w.claims[uid])
	refused(w.t.(*testing.T), err, kind, reason, says...)
	if devices != nil {
		w.t.Errorf("devices %v beside an error", devices)
	}
}

func TestPrepareAnswersWhatTheRuntimeFinds(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	devices, err := p.Prepare(context.Background(), w.claim("a", 1, -3))
	w.must(err)
	want := []string{"k8s.gpu.nvidia.com/claim=a-gpu-0000-11-00-0", "k8s.gpu.nvidia.com/claim=a-monitor-0000-12-00-0"}
	for i, d := range devices {
		if d.CDIDeviceID != want[i] || d.Request != []string{"r0", "r1"}[i] {
			t.Errorf("device %d: %+v", i, d)
		}
	}
	w.clean(p, "a")
}

func TestSecondClaimOfAGPUIsRefusedUntilTheFirstIsReleased(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.claim("a", 0)
	w.claim("b", 1, 0)
	w.claim("m", -1)
	w.prepare(p, "a")
	w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "gpu-0000-10-00-0", "default/claim-a", "UID a", "default/claim-b")
	w.prepare(p, "m") // Watching is neither refused nor refuses.
	w.clean(p, "a", "m")
	w.must(p.Unprepare(context.Background(), claimOf("a")))
	w.prepare(p, "b")
	w.prepare(p, "b")
	w.clean(p, "b", "m")
}

func TestWatcherDoesNotHoldItsGPU(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.claim("m", -1, -2, 2)
	w.claim("a", 0, 1)
	w.prepare(p, "m")
	w.prepare(p, "a")
	w.clean(p, "a", "m")
	w.claim("b", 2)
	w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "gpu-0000-12-00-0")
}

func TestClaimMadeAgainUnderTheSameNameIsAnother(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.claim("a", 0)
	again := w.claim("b", 0)
	again.Name = "claim-a"
	w.prepare(p, "a")
	w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
	w.must(p.Unprepare(context.Background(), plan.Claim{Namespace: "default", Name: "claim-a", UID: "a"}))
	w.prepare(p, "b")
	// The kubelet may end the first one once more; it is not the second.
	w.must(p.Unprepare(context.Background(), plan.Claim{Namespace: "default", Name: "claim-a", UID: "a"}))
	w.clean(p, "b")
}

func TestSameUIDWithAnotherAllocationIsPreparedAnew(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.steppedClaim("a", 0)
	w.prepare(p, "a")
	allocate(w.claims["a"], 1)
	devices, err := p.Prepare(context.Background(), w.claims["a"])
	w.must(err)
	if len(devices) != 1 || devices[0].PCIAddress != address(1) {
		t.Fatalf("devices %+v", devices)
	}
	w.clean(p, "a")
	w.claim("b", 0)
	w.prepare(p, "b")
}

func TestClaimOfOtherDriversIsNoneOfOurs(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	c := w.claim("a", 0)
	c.Status.Allocation.Devices.Results[0].Driver = "nic.example.com"
	devices, err := p.Prepare(context.Background(), c)
	if err != nil || len(devices) > 0 {
		t.Fatalf("%v, %v", devices, err)
	}
	w.clean(p)
}

func TestUIDThatCannotNameAFile(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	for _, uid := range []string{"", "../../x", "a/b", strings.Repeat("a", 129)} {
		c := w.claim("a", 0)
		c.UID = types.UID(uid)
		w.refused(p, "a", claimerror.Permanent, claimerror.InvalidAllocation, "UID")
		w.must(p.Unprepare(context.Background(), plan.Claim{UID: uid}))
	}
	w.clean(p)
}

func TestPrepareHeldPastItsDeadlineLeavesNothing(t *testing.T) {
	for _, label := range []host.Label{"test.apply-gate", store.LabelWrite, record.LabelIntent, record.LabelCommit} {
		t.Run(string(label), func(t *testing.T) {
			w := newWorld(t)
			g := hosttest.NewGate(label)
			p, err := w.start(g.Do)
			w.must(err)
			defer p.host.Close()
			c := w.steppedClaim("a", 0)
			ctx, cancel := context.WithCancel(context.Background())
			if label == "test.apply-gate" {
				// Held in the lock queue: another claim has the GPU's lock.
				lock, err := p.host.Lock(context.Background(), w.state+"/locks/gpu-"+address(0), 0)
				w.must(err)
				close(g.Reached)
				go func() { <-g.Open; lock.Release() }()
			}
			prepared, ended := make(chan error, 1), make(chan error, 1)
			go func() { _, err := p.Prepare(ctx, c); prepared <- err }()
			<-g.Reached
			cancel()
			go func() { ended <- p.Unprepare(context.Background(), claimOf("a")) }()
			close(g.Open)
			err = <-prepared
			w.must(<-ended)
			if err != nil {
				// The commit itself, once begun, may be answered; the Unprepare behind it undoes it.
				refused(t, err, claimerror.Transient, claimerror.Interrupted, "context canceled")
			} else if label != record.LabelCommit {
				t.Error("Prepare answered a caller that had gone")
			}
			w.clean(p)
		})
	}
}

func TestCallerWhoLeftDuringTheLocksGetsNothingDone(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(context.Background())
	w.read = func(path string) ([]byte, error) {
		cancel() // The record is read once the claim's lock is held; a monitor has no other lock.
		return os.ReadFile(path)
	}
	f := hosttest.Trace()
	p, err := w.start(f.Do)
	w.must(err)
	defer p.host.Close()
	f.Arm()
	_, err = p.Prepare(ctx, w.claim("a", -1))
	refused(t, err, claimerror.Transient, claimerror.Interrupted, "context canceled")
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
			w := newWorld(t)
			f := hosttest.FailAll(test.at, test.err)
			p, err := w.start(f.Do)
			w.must(err)
			defer p.host.Close()
			w.claim("a", 0)
			f.Arm()
			w.refused(p, "a", claimerror.Transient, claimerror.HostFailure, "default/claim-a", test.err.Error(), "node's disk")
			f.Disarm()
			w.must(p.Unprepare(context.Background(), claimOf("a")))
			w.clean(p)
			w.prepare(p, "a")
			w.clean(p, "a")
		})
	}
}

func TestPodEndsWhileTheDiskIsFull(t *testing.T) {
	w := newWorld(t)
	f := hosttest.FailAll(func(o host.Operation) bool {
		return o.Call == host.CallWrite || o.Call == host.CallNote || o.Call == host.CallMkdir
	}, syscall.ENOSPC)
	p, err := w.start(f.Do)
	w.must(err)
	defer p.host.Close()
	w.claim("a", 0)
	w.prepare(p, "a")
	f.Arm()
	w.must(p.Unprepare(context.Background(), claimOf("a")))
	f.Disarm()
	w.clean(p)
}

func TestDriverRootErrorIsToldAndNothingStays(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.steppedClaim("a", 0)
	w.editsErr = errors.New("libcuda.so.580.126.09 is not under the driver root")
	w.refused(p, "a", claimerror.Transient, claimerror.DriverNotReady, "libcuda.so", "nvidia-smi")
	w.clean(p)
	w.editsErr = nil
	w.prepare(p, "a")
	// A running pod's claim is not torn down because the driver root is being replaced.
	w.editsErr = errors.New("gone")
	w.refused(p, "a", claimerror.Transient, claimerror.DriverNotReady)
	w.clean(p, "a")
}

func TestNVMLAbsent(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.claim("a", 0)
	w.prepare(p, "a")
	w.snapshot.Driver.Version, w.snapshot.GPUs = "", nil
	w.refused(p, "a", claimerror.Transient, claimerror.DriverNotReady, "not loaded")
	w.clean(p, "a")
	w.must(p.Unprepare(context.Background(), claimOf("a")))
	w.clean(p)
}

func TestBootIDUnreadable(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.claim("a", 0)
	w.must(os.WriteFile(w.bootFile, nil, 0o600))
	w.refused(p, "a", claimerror.Transient, claimerror.HostFailure, "boot ID")
	if _, err := p.Recover(context.Background()); err == nil {
		t.Error("Recover did without a boot ID")
	}
	w.newBoot()
	w.prepare(p, "a")
}

func TestFailureAfterARebootKeepsTheClaimsHold(t *testing.T) {
	for _, make := range []func(*world, string, ...int){
		func(w *world, uid string, gpus ...int) { w.claim(uid, gpus...) },
		func(w *world, uid string, gpus ...int) { w.steppedClaim(uid, gpus...) },
	} {
		w := newWorld(t)
		p := w.run()
		make(w, "a", 0)
		w.prepare(p, "a")
		w.reboot(false)
		w.editsErr = errors.New("not yet")
		w.refused(p, "a", claimerror.Transient, claimerror.DriverNotReady)
		w.clean(p, "a")
		w.claim("b", 0)
		w.editsErr = nil
		w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
		w.prepare(p, "a")
		w.clean(p, "a")
	}
}

func TestHoldersAreFoundAfterAPowerCutTookTheNotes(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.claim("a", 0)
	w.claim("b", 0)
	w.claim("c", 1)
	w.prepare(p, "a")
	p.host.Close()
	w.reboot(false)
	w.empty(w.state+"/locks", "")
	p = w.run() // Recover has not run yet.
	w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
	w.prepare(p, "c")
	w.clean(p, "a", "c")
}

func TestRecordOfALaterVersionsExecutorBlocksAndSaysSo(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.steppedClaim("a", 0)
	w.prepare(p, "a")
	executors := p.Executors
	p.Executors = nil
	err := p.Unprepare(context.Background(), claimOf("a"))
	refused(t, err, claimerror.Transient, claimerror.HostFailure, `"file"`, "install the version")
	findings, err := p.Recover(context.Background())
	w.must(err)
	if len(findings) != 1 || findings[0].Err == nil {
		t.Fatalf("findings %+v", findings)
	}
	w.claim("b", 0)
	w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a, releasing")
	p.Executors = executors
	w.must(recovers(w, p))
	w.clean(p)
}

func TestLaterPlanOfOtherStepsDoesNotStrandThoseOfTheCommit(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	c := w.steppedClaim("a", 0)
	w.prepare(p, "a")
	c.Labels[stepped] = "upgraded"
	w.prepare(p, "a")
	w.clean(p, "a")
	w.must(p.Unprepare(context.Background(), claimOf("a")))
	w.clean(p)
}

func TestRecoverIsIdleWhereNothingIsWrong(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	twice(w, p)
	f := hosttest.Trace()
	q, err := w.start(f.Do)
	w.must(err)
	p.host.Close()
	defer q.host.Close()
	findings, err := q.Recover(context.Background())
	if err != nil || len(findings) > 0 {
		t.Fatalf("%+v, %v", findings, err)
	}
	lost, err := q.SpecsLost()
	if err != nil || lost {
		t.Fatalf("specs lost: %v, %v", lost, err)
	}
	w.must(os.Remove(w.specFile("a")))
	if lost, err = q.SpecsLost(); err != nil || !lost {
		t.Fatalf("specs lost: %v, %v", lost, err)
	}
	findings, err = q.Recover(context.Background())
	if err != nil || len(findings) != 1 || findings[0].Did != "spec written again" {
		t.Fatalf("%+v, %v", findings, err)
	}
	w.reboot(false)
	if lost, err = q.SpecsLost(); err != nil || lost {
		t.Fatalf("specs lost in another boot: %v, %v", lost, err)
	}
}

func TestRecoverStopsWhenItsCallerDoes(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.claim("a", 0)
	w.prepare(p, "a")
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	if _, err := p.Recover(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Recover: %v", err)
	}
	if err := p.Unprepare(ctx, claimOf("a")); claimerror.ReasonOf(err) != claimerror.Interrupted {
		t.Errorf("Unprepare: %v", err)
	}
}

func TestOpenFailsWhereTheStateDirectoryCannotBe(t *testing.T) {
	w := newWorld(t)
	w.must(os.WriteFile(w.dir+"/plugin", nil, 0o600))
	if _, err := w.start(nil); err == nil || !strings.Contains(err.Error(), w.state) {
		t.Errorf("Open: %v", err)
	}
	if _, err := devicestate.Open(devicestate.Options{Host: host.New(host.Options{}), Dir: "/proc/nothing"}); err == nil {
		t.Error("Open in /proc")
	}
}

func TestSpecOfAnEarlierBootIsRemovedAndItsClaimKept(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.claim("a", 0)
	w.prepare(p, "a")
	w.reboot(true)
	findings, err := p.Recover(context.Background())
	w.must(err)
	if len(findings) != 1 || findings[0].Err != nil || findings[0].Claim.UID != "a" {
		t.Errorf("findings %+v", findings)
	}
	if _, err := os.Stat(w.specFile("a")); !errors.Is(err, os.ErrNotExist) {
		t.Error("devices by the numbers of another boot can still be injected:", err)
	}
	w.clean(p, "a")
	w.snapshot.GPUs[0].Minor = 5
	devices, err := p.Prepare(context.Background(), w.claims["a"])
	w.must(err)
	if devices[0].Minor != 5 {
		t.Errorf("%+v", devices)
	}
	w.clean(p, "a")
}
