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

	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
)

func TestPrepare_GPUAndMonitor_ReturnsCDIDevices(t *testing.T) {
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

func TestPrepare_GPUHeldByClaim_RefusedUntilUnprepare(t *testing.T) {
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

func TestPrepare_Monitor_DoesNotHoldGPU(t *testing.T) {
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

func TestPrepare_SameNameOtherUID_IsAnotherClaim(t *testing.T) {
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

func TestPrepare_OtherAllocation_PreparesAnew(t *testing.T) {
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

func TestPrepare_OtherDriver_ReturnsNoDevices(t *testing.T) {
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

func TestPrepare_UIDNotAFileName_Refused(t *testing.T) {
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

func TestPrepare_CallerLeavesMeanwhile_LeavesNothing(t *testing.T) {
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

func TestPrepare_CallerLeavesDuringLock_MakesNoChange(t *testing.T) {
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

func TestPrepare_DiskFails_ReturnsErrorAndLeavesNothing(t *testing.T) {
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

func TestPrepare_DriverRootIncomplete_ReturnsErrorAndLeavesNothing(t *testing.T) {
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

func TestPrepare_DriverNotLoaded_ReturnsError(t *testing.T) {
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

func TestPrepare_BootIDUnreadable_ReturnsError(t *testing.T) {
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

func TestPrepare_FailsAfterReboot_KeepsDevices(t *testing.T) {
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

func TestPrepare_NotesLostInPowerCut_FindsHolders(t *testing.T) {
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

func TestPrepare_StepsChange_RevertsOldSteps(t *testing.T) {
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

func TestPrepare_TwoUnknownClaims_BothSucceed(t *testing.T) {
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

// TestPrepare_OtherRecordUnreadable_PreparedClaimSucceeds damages the record of claim a. With its CDI spec only the claim's own
// GPU is refused to others, and else every GPU.
func TestPrepare_OtherRecordUnreadable_PreparedClaimSucceeds(t *testing.T) {
	for _, hasSpec := range []bool{true, false} {
		e := devicestatetest.New(t)
		p := e.Start()
		for i, uid := range []string{"a", "b"} {
			e.Claim(uid, fmt.Sprint(i))
			e.Prepare(p, uid)
		}
		e.Damage("a")
		if !hasSpec {
			e.Must(os.Remove(e.SpecFile("a")))
		}
		p.Crash()
		e.Empty(e.StateDir+"/locks", "") // Nothing says any more that a is not on b's GPU, except b's own record.
		p = e.Start()
		if _, incomplete, err := p.Held(); err != nil || incomplete == hasSpec {
			t.Errorf("with a spec %v: incomplete %v, %v", hasSpec, incomplete, err)
		}
		if !p.Incomplete() {
			t.Error("no Recover would rebuild the record")
		}
		e.Prepare(p, "b")
		e.Claim("c", "2")
		e.Claim("d", "1")
		e.Claim("e", "0")
		e.CheckRefused(p, "e", claimerror.Transient, claimerror.DeviceInUse, "UID a")
		if hasSpec {
			e.Prepare(p, "c")
		} else {
			e.CheckRefused(p, "c", claimerror.Transient, claimerror.DeviceInUse, "claim UID a may hold it")
		}
		// The notes of b did not drop a, which may hold any GPU.
		e.Unprepare(p, "b")
		if !hasSpec {
			e.CheckRefused(p, "d", claimerror.Transient, claimerror.DeviceInUse, "claim UID a may hold it")
			e.Recover(p)
			e.Must(e.Identify(p))
			e.Recover(p)
			e.Prepare(p, "c")
		}
		e.Prepare(p, "d")
		e.Recover(p)
		e.CheckRefused(p, "e", claimerror.Transient, claimerror.DeviceInUse, "UID a")
		e.CheckClean(p, "a", "c", "d")
	}
}
