// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

// TestBindings_DriverOrGPUBoundAgain_Differs makes each change end before the next call, with all names as before.
func TestBindings_DriverOrGPUBoundAgain_Differs(t *testing.T) {
	for name, change := range map[string][2]func(*engine.State){
		"GPU bound again": {
			func(s *engine.State) { s.Remove(&s.GPUs[0]) },
			func(s *engine.State) { s.Add(&s.GPUs[0]) },
		},
		"driver loaded again": {
			func(s *engine.State) { s.DriverLoaded = false },
			func(s *engine.State) { s.DriverLoaded = true },
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := simtest.Root(t, "hgx-h100", nil)
			before := Bindings(m.SysRoot)
			if again := Bindings(m.SysRoot); before == "" || again != before {
				t.Fatalf("nothing changed: %q, %q", before, again)
			}
			simtest.Change(t, m, change[0])
			during := Bindings(m.SysRoot)
			simtest.Change(t, m, change[1])
			if after := Bindings(m.SysRoot); during == before || after == before || after == during {
				t.Errorf("before %q, during %q, after %q", before, during, after)
			}
		})
	}
}

// TestBindings_CachesDropped_AreEqual changes the times that sysfs keeps in memory only, which the kernel makes anew after
// it dropped its caches.
func TestBindings_CachesDropped_AreEqual(t *testing.T) {
	m := simtest.Root(t, "hgx-h100", nil)
	before, changed := Bindings(m.SysRoot), 0
	for _, dir := range []string{"module", "bus/pci/drivers/nvidia"} {
		entries, err := os.ReadDir(filepath.Join(m.SysRoot, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			path := filepath.Join(m.SysRoot, dir, e.Name())
			if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, make([]unix.Timespec, 2), unix.AT_SYMLINK_NOFOLLOW); err != nil {
				t.Fatal(err)
			}
			changed++
		}
	}
	if after := Bindings(m.SysRoot); after != before || changed < 9 {
		t.Errorf("after %d files have other times: %q, before %q", changed, after, before)
	}
}

func TestBindings_NoDriver_IsEmpty(t *testing.T) {
	if got := Bindings(t.TempDir()); got != "" {
		t.Errorf("%q", got)
	}
}

func TestWatch_MinorNumbersChange_ScansAtNextPoll(t *testing.T) {
	w := newWatch(t, nil)
	minor := func(address, number string) {
		path := filepath.Join(w.dir, "driver/nvidia/gpus", address, "information")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("Model: \t\t X\nDevice Minor: \t "+number+"\nGPU Firmware: \t 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	minor("0000:1b:00.0", "0")
	minor("0000:43:00.0", "1")
	w.start()
	w.next()
	minor("0000:1b:00.0", "1")
	minor("0000:43:00.0", "0")
	simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[0].Minor, s.GPUs[1].Minor = 1, 0 })
	w.tick(1)
	if d := w.next(); d.err != nil || d.snapshot.GPUs[0].Minor != 1 {
		t.Errorf("GPU 0 has the number %d, %v", d.snapshot.GPUs[0].Minor, d.err)
	}
}

// TestMinorNumbers_OneGPUHangs_KeepsItsNumber reads from a pipe without a writer in place of the driver's file.
func TestMinorNumbers_OneGPUHangs_KeepsItsNumber(t *testing.T) {
	dir := t.TempDir()
	file := func(gpu string) string { return filepath.Join(dir, gpu, "information") }
	for _, gpu := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, gpu), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file(gpu), []byte("Device Minor: \t 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, bindings := minorNumbers{last: map[string]string{}}, "1"
	read := func() string {
		numbers := make(chan string, 1)
		go func() { numbers <- m.read(dir, []string{"a", "b"}, bindings) }()
		select {
		case n := <-numbers:
			return n
		case <-time.After(20 * time.Second):
			t.Fatal("it waits for the GPU that hangs")
			return ""
		}
	}
	before := read()
	bindings = "2"
	if err := os.Remove(file("a")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(file("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if f, err := os.OpenFile(file("a"), os.O_RDWR, 0); err == nil { // Ends the read.
			_ = f.Close()
		}
	})
	for range 2 {
		if now := read(); now != before {
			t.Errorf("%q, was %q", now, before)
		}
	}
	if err := os.WriteFile(file("b"), []byte("Device Minor: \t 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if now := read(); now == before {
		t.Errorf("the number of the other GPU is not read: %q", now)
	}
}

// TestMinorNumbers_BindingsSame_FilesNotReadAgain: only a binding gives a number. Without bindings each poll reads.
func TestMinorNumbers_BindingsSame_FilesNotReadAgain(t *testing.T) {
	dir, m := t.TempDir(), minorNumbers{last: map[string]string{}}
	for i, c := range []struct {
		bindings string
		want     int
	}{{"", 0}, {"", 1}, {"x", 2}, {"x", 2}, {"y", 4}, {"y", 4}, {"x", 6}, {"", 7}, {"x", 8}} {
		number := fmt.Sprintf("Device Minor: \t %d", i)
		if err := os.MkdirAll(filepath.Join(dir, "a"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "a/information"), []byte(number+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, want := m.read(dir, []string{"a"}, c.bindings), fmt.Sprintf("\na Device Minor: \t %d", c.want); got != want {
			t.Errorf("poll %d with bindings %q: %q, want %q", i, c.bindings, got, want)
		}
	}
}
