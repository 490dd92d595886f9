// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
)

// node is a node with two GPUs and the kernel's log, in a bubble.
type node struct {
	*testing.T
	dir    string
	faults *hosttest.Faults

	mu sync.Mutex
	// log are the messages of the ring from the position first on. written is closed when there is another one.
	log     []string
	first   uint64
	written chan struct{}
	err     error
	scans   *inventory.Latest
	older   bool
	// deadly is the XID with which the process is killed.
	deadly  uint64
	got     []string
	polls   int
	reports []error
	opened  int
}

// file is the kernel's log as a program has opened it.
type file struct {
	*node
	next     uint64
	deadline time.Time
}

func (f *file) SetReadDeadline(at time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deadline = at
	f.wake()
	return nil
}

func (f *file) Close() error { return nil }

// Read returns one message. A message that was overwritten is EPIPE, and one that is too long EINVAL.
func (f *file) Read(b []byte) (int, error) {
	for {
		f.mu.Lock()
		end, deadline, written := f.first+uint64(len(f.log)), f.deadline, f.written
		var line string
		switch {
		case f.err != nil:
			defer f.mu.Unlock()
			return 0, f.err
		case f.next < f.first:
			f.next = f.first
			f.mu.Unlock()
			return 0, &os.PathError{Op: "read", Err: syscall.EPIPE}
		case f.next < end:
			line = f.log[f.next-f.first]
			f.next++
			f.mu.Unlock()
			if len(line) > len(b) {
				return 0, syscall.EINVAL
			}
			return copy(b, line), nil
		}
		f.mu.Unlock()
		var late <-chan time.Time
		if !deadline.IsZero() {
			if !time.Now().Before(deadline) {
				return 0, os.ErrDeadlineExceeded
			}
			late = time.After(time.Until(deadline))
		}
		select {
		case <-written:
		case <-late:
		}
	}
}

func (n *node) wake() {
	close(n.written)
	n.written = make(chan struct{})
}

// write adds messages of a program (facility 1) or of the kernel (0).
func (n *node) write(facility int, texts ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, text := range texts {
		n.log = append(n.log, fmt.Sprintf("%d,%d,1,-;%s\n SUBSYSTEM=pci\n", facility<<3|3, n.first+uint64(len(n.log)), text))
	}
	n.wake()
}

func xidOf(gpu, code int) string {
	return fmt.Sprintf("NVRM: Xid (PCI:0000:%02d:00): %d, pid='<unknown>', name=<unknown>, Ch 00000008", gpu, code)
}

func (n *node) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// run runs a plugin while do is called, and stops it.
func (n *node) run(do func()) {
	n.Helper()
	machine, xids := host.New(host.Options{BootIDFile: filepath.Join(n.dir, "boot"), FaultHook: n.faults.Do}), notify.NewTrigger()
	l := New(machine, Options{
		Path: "/dev/kmsg", Cursor: filepath.Join(n.dir, "kernellog.json"), Scans: n.scans, Health: n, XIDs: xids, Instance: n.enlist(machine),
		Reports: notifytest.Reporter(func(err error) { n.set(func() { n.reports = append(n.reports, err) }) }),
	})
	if n.older {
		newer := host.New(host.Options{})
		defer newer.Close()
		n.enlist(newer)
	}
	l.open = func(string) (source, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.opened++
		if n.err != nil {
			return nil, n.err
		}
		return &file{node: n, next: n.first}, nil
	}
	ctx, cancel := context.WithCancel(n.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	go func() {
		for ctx.Err() == nil {
			select {
			case <-xids:
				n.set(func() { n.polls++ })
			case <-ctx.Done():
			}
		}
	}()
	time.Sleep(2 * idleTimeout)
	synctest.Wait()
	do()
	cancel()
	<-ended
	machine.Close()
}

// Event implements Health.
func (n *node) Event(g gpu.GPU, code uint64) {
	if code == n.deadly {
		runtime.Goexit()
	}
	n.set(func() { n.got = append(n.got, fmt.Sprint(g.UUID, " ", code)) })
}

// enlist makes a process the newest instance.
func (n *node) enlist(machine *host.Host) *host.Instance {
	n.Helper()
	i, err := machine.Enlist(n.Context(), filepath.Join(n.dir, "instance"))
	if err != nil {
		n.Fatal(err)
	}
	return i
}

// want checks the XIDs since the last call.
func (n *node) want(xids ...string) {
	n.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if diff := cmp.Diff(xids, n.got); diff != "" {
		n.Errorf("XIDs (-want +got):\n%s", diff)
	}
	n.got = nil
}

func (n *node) boot(id string) {
	n.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, "boot"), []byte(id), 0o600); err != nil {
		n.Fatal(err)
	}
}

func test(t *testing.T, do func(*node)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := &node{T: t, dir: dir, written: make(chan struct{}), scans: inventory.NewLatest(), faults: hosttest.FailAll(func(host.Operation) bool { return true }, syscall.ENOSPC)}
		gpus := []gpu.GPU{{PCIAddress: "0000:01:00.0", UUID: "GPU-1"}, {PCIAddress: "0000:02:00.0", UUID: "GPU-2"}}
		n.scans.Set(gpu.Snapshot{GPUs: gpus})
		n.boot("first")
		n.write(0, "Linux version 6.18", xidOf(1, 46))
		do(n)
	})
}

// TestRun_PluginWasDown_ItsXIDsArePassedOn starts a plugin for the first time, stops it, and starts it again.
func TestRun_PluginWasDown_ItsXIDsArePassedOn(t *testing.T) {
	test(t, func(n *node) {
		n.run(func() { n.want() }) // The log's XID is older than the plugin.
		n.write(0, xidOf(1, 62), xidOf(2, 119), xidOf(1, 62))
		n.write(1, xidOf(2, 79))
		n.run(func() {
			n.want("GPU-1 62", "GPU-2 119")
			n.set(func() {
				if n.polls != 1 {
					n.Errorf("%d polls", n.polls)
				}
			})
			n.write(0, xidOf(2, 31))
			time.Sleep(idleTimeout)
			n.want("GPU-2 31")
		})
		n.run(func() { n.want() })
	})
}

// TestRun_Killed_LosesNoXID ends a plugin while it passes XIDs on, and one before it saves its position.
func TestRun_Killed_LosesNoXID(t *testing.T) {
	test(t, func(n *node) {
		n.run(func() { n.want() })
		n.deadly = 119
		n.write(0, xidOf(1, 62), xidOf(2, 119))
		n.run(func() { n.want("GPU-1 62") })
		n.deadly = 0
		n.run(func() { n.want("GPU-1 62", "GPU-2 119") })
		n.faults.Arm()
		n.write(0, xidOf(1, 62))
		n.run(func() { n.want("GPU-1 62") })
		n.faults.Disarm()
		n.run(func() { n.want("GPU-1 62") })
		n.run(func() { n.want() })
	})
}

func TestRun_NodeRebooted_XIDsOfTheBootArePassedOn(t *testing.T) {
	test(t, func(n *node) {
		n.run(func() { n.want() })
		n.boot("second")
		n.log = nil
		n.write(0, xidOf(2, 62))
		n.run(func() { n.want("GPU-2 62") })
		n.run(func() { n.want() })
	})
}

// TestRun_DriverWasLoaded_XIDsBeforeItEnd has XIDs of a driver that was replaced.
func TestRun_DriverWasLoaded_XIDsBeforeItEnd(t *testing.T) {
	test(t, func(n *node) {
		n.run(func() { n.want() })
		n.write(0, xidOf(2, 62))
		n.write(1, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15") // A program's.
		n.run(func() { n.want("GPU-2 62") })
		n.write(0, xidOf(2, 62), "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15", xidOf(1, 46))
		n.run(func() { n.want("GPU-1 46") })
	})
}

// TestRun_CursorDamaged_BeginsAtTheEnd reports the damage once.
func TestRun_CursorDamaged_BeginsAtTheEnd(t *testing.T) {
	test(t, func(n *node) {
		n.run(func() { n.want() })
		if err := os.WriteFile(filepath.Join(n.dir, "kernellog.json"), []byte(`{"kind":`), 0o600); err != nil {
			n.Fatal(err)
		}
		n.write(0, xidOf(1, 62))
		n.run(func() { n.want() })
		n.write(0, xidOf(1, 62))
		n.run(func() { n.want("GPU-1 62") })
		if len(n.reports) != 1 || !strings.Contains(n.reports[0].Error(), "find the XIDs since the plugin's last run") {
			n.Errorf("reports %v", n.reports)
		}
	})
}

// TestRun_MessagesOverwritten_ReadsOn overwrites a part of the ring before it is read, and writes a message that is too long.
func TestRun_MessagesOverwritten_ReadsOn(t *testing.T) {
	test(t, func(n *node) {
		n.run(func() {
			n.set(func() {
				n.first += uint64(len(n.log)) + 100
				n.log = nil
			})
			n.write(0, strings.Repeat("x", longestMessage), xidOf(1, 62))
			time.Sleep(3 * idleTimeout)
			n.want("GPU-1 62")
			n.set(func() {
				if n.polls != 2 {
					n.Errorf("%d polls, want one for the loss and one for the XID", n.polls)
				}
			})
		})
		n.run(func() { n.want() })
	})
}

// TestRun_GPUCannotBeRead_XIDWaits also restarts the plugin meanwhile. The XIDs of other GPUs are not passed on again,
// because an administrator can have cleared their faults.
func TestRun_GPUCannotBeRead_XIDWaits(t *testing.T) {
	test(t, func(n *node) {
		n.run(func() { n.want() })
		all := n.scans.Snapshot()
		n.scans.Set(gpu.Snapshot{GPUs: all.GPUs[:1]})
		n.write(0, xidOf(2, 119), xidOf(1, 62))
		n.run(func() {
			n.want("GPU-1 62")
			time.Sleep(time.Hour)
			n.want()
		})
		n.run(func() {
			n.want()
			n.scans.Set(all)
			time.Sleep(retryInterval)
			n.want("GPU-2 119")
		})
		n.run(func() { n.want() })
	})
}

// TestRun_Storm_PassesOnOnceASecond writes the same XIDs without a pause, as NVIDIA's driver can.
func TestRun_Storm_PassesOnOnceASecond(t *testing.T) {
	test(t, func(n *node) {
		n.run(func() {
			for range 5000 {
				n.write(0, xidOf(1, 31), xidOf(2, 31))
				time.Sleep(time.Millisecond)
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			if len(n.got) < 6 || len(n.got) > 12 {
				n.Errorf("%d XIDs are passed on in five seconds", len(n.got))
			}
		})
	})
}

func TestRun_LogCannotBeRead_TriesAgain(t *testing.T) {
	test(t, func(n *node) {
		n.run(func() { n.want() })
		n.set(func() { n.err = syscall.EPERM })
		n.write(0, xidOf(1, 62))
		n.run(func() {
			time.Sleep(10 * time.Minute)
			n.set(func() {
				if n.opened < 20 || n.opened > 25 {
					n.Errorf("opened %d times in ten minutes", n.opened)
				}
				n.err = nil
			})
			time.Sleep(retryInterval + idleTimeout)
			n.want("GPU-1 62")
			n.set(func() { n.err = errors.New("it was removed") })
			n.set(n.wake)
			time.Sleep(time.Minute)
			n.set(func() { n.err = nil })
			n.write(0, xidOf(2, 62))
			time.Sleep(retryInterval + idleTimeout)
			n.want("GPU-2 62")
		})
	})
}

// TestRun_OlderInstance_DoesNotSave runs the old plugin of an upgrade.
func TestRun_OlderInstance_DoesNotSave(t *testing.T) {
	test(t, func(n *node) {
		n.older = true
		n.run(func() { n.want() })
		if _, err := os.Stat(filepath.Join(n.dir, "kernellog.json")); !errors.Is(err, os.ErrNotExist) {
			n.Error("the older instance saves its position")
		}
	})
}

// TestRun_FileThatGrows_IsReadToItsEnd reads a simulated log: several messages a read, and a line in two parts.
func TestRun_FileThatGrows_IsReadToItsEnd(t *testing.T) {
	test(t, func(n *node) {
		n.run(func() { n.want() })
		f, err := os.Create(filepath.Join(n.dir, "kmsg"))
		if err != nil {
			n.Fatal(err)
		}
		defer f.Close()
		write := func(text string) {
			if _, err := io.WriteString(f, text); err != nil {
				n.Error(err)
			}
		}
		for i := range 2000 {
			write(fmt.Sprintf("3,%d,1,-;%s\n", i, xidOf(1, i/1000+61)))
		}
		write("3,2000,1,-;NVRM: Xid (PCI:0000:02")
		machine := host.New(host.Options{BootIDFile: filepath.Join(n.dir, "boot")})
		defer machine.Close()
		l := New(machine, Options{
			Path: f.Name(), Cursor: filepath.Join(n.dir, "kernellog.json"), Scans: n.scans, Health: n, XIDs: notify.NewTrigger(),
			Instance: n.enlist(machine), Reports: notifytest.Reporter(func(err error) { n.Error(err) }),
		})
		ctx, cancel := context.WithCancel(n.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := l.read(ctx); err != nil {
				n.Error(err)
			}
		}()
		time.Sleep(flushInterval / 2)
		n.want("GPU-1 61", "GPU-1 62")
		write(":00): 46\n")
		time.Sleep(flushInterval)
		n.want("GPU-2 46")
		cancel()
		<-ended
	})
}
