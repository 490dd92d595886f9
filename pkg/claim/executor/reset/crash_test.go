// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reset_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/claim/executor/reset"
	"gpu-dra-driver/pkg/claim/record"
)

// TestRestore_CrashAtEveryOperation_ResetsOnceInTenMinutes kills the plugin before and after each operation of an attempt,
// and while nvidia-smi runs. A GPU whose reset began is not reset by the next process; another one is.
func TestRestore_CrashAtEveryOperation_ResetsOnceInTenMinutes(t *testing.T) {
	for _, kind := range []hosttest.Kind{hosttest.CrashBefore, hosttest.CrashAfter} {
		for n, more := 0, true; more; n++ {
			m := newMachine(t)
			faults := hosttest.At(n, kind)
			attempts, err := record.OpenGPUs(host.New(host.Options{FaultHook: faults.Do}), m.dir, reset.Setting)
			if err != nil {
				t.Fatal(err)
			}
			m.o.Attempts = attempts
			faults.Arm()
			killed, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			m.reset = func(context.Context) error {
				m.resets++
				close(killed)
				<-release // The process of the kill goes no further.
				return nil
			}
			first := reset.New(m.o).Setting().Restore
			go func() {
				defer close(ended)
				_, _ = hosttest.Run(func() error { return first(context.Background(), m.gpu) })
			}()
			select {
			case <-killed:
			case <-ended:
			}
			more = len(faults.Seen()) > n
			began := m.resets
			m.reset = nil
			m.start()
			m.uptime = time.Minute
			if err := m.round(); err != nil {
				t.Error(err)
			}
			if m.resets > 1 || began == 0 && !more {
				t.Errorf("%s %d: %d resets, %d of the first process", kind, n, m.resets, began)
			}
			m.start()
			m.uptime += 10 * time.Minute
			if err := m.round(); err != nil || m.resets == 0 || m.resets > 2 {
				t.Errorf("%s %d: %d resets after ten minutes, %v", kind, n, m.resets, err)
			}
			close(release)
			<-ended
		}
	}
}

// TestRestore_ProgramCannotBeKilled_KeepsGPUUntilItEnds has nvidia-smi hang in the kernel driver, where no signal ends it. The
// reset can still happen, so no claim may use the GPU.
func TestRestore_ProgramCannotBeKilled_KeepsGPUUntilItEnds(t *testing.T) {
	m := newMachine(t)
	synctest.Test(t, func(t *testing.T) {
		end, ended := make(chan error), make(chan error)
		m.o.Limit = time.Minute
		m.reset = func(context.Context) error { return <-end }
		reports := make(chan string, 2)
		m.o.Reports = notifytest.Reporter(func(err error) { reports <- err.Error() })
		go func() { ended <- m.round() }()
		time.Sleep(time.Minute + 4*time.Second)
		synctest.Wait()
		if len(reports) > 0 {
			t.Errorf("reported before nvidia-smi can have ended: %q", <-reports)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("the GPU is given back during its reset: %v", err)
		default:
		}
		if len(reports) != 1 {
			t.Fatalf("%d reports", len(reports))
		}
		if text := <-reports; !strings.Contains(text, "was killed after 1m0s, and does not end: the driver hangs") {
			t.Errorf("reported: %s", text)
		}
		if m.o.Switches.(*locks).held.Load() != 1 {
			t.Error("event sets can have the GPU during its reset")
		}
		end <- nil
		if err := <-ended; err != nil || len(reports) > 0 || m.o.Switches.(*locks).held.Load() != 0 {
			t.Errorf("after its end: %v, %d reports more", err, len(reports))
		}
	})
}
