// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/procfs"
)

// mountShm mounts a separate /dev/shm of the configured size for the clients and the daemon.
func mountShm(dir, size string) error {
	if mounted(dir) {
		return nil
	}
	if err := unix.Mount("shm", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"size="+size+",mode=1777"); err != nil {
		return fmt.Errorf("mount shared memory at %s: %w", dir, err)
	}
	return nil
}

// mounted reports whether a directory is the root of a mount.
func mounted(dir string) bool {
	var here, above unix.Stat_t
	return unix.Lstat(dir, &here) == nil && unix.Lstat(filepath.Dir(dir), &above) == nil && here.Dev != above.Dev
}

// offer makes a daemon's socket for clients the only file of the directory that containers mount. The daemon's own
// directory also has the socket over which root, in a container too, changes every limit and ends the daemon.
func offer(daemon, clients string) error {
	next := filepath.Join(clients, controlSocket+".next")
	err := os.Link(filepath.Join(daemon, controlSocket), next)
	if err == nil {
		err = os.Rename(next, filepath.Join(clients, controlSocket))
	}
	if err != nil {
		return fmt.Errorf("offer the MPS daemon to containers: %w", err)
	}
	return nil
}

// emptied empties a directory. The directory itself stays: containers have it mounted.
func emptied(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("clear the pipe directory: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("clear the pipe directory: %w", err)
		}
	}
	return nil
}

// removeLeftover removes a directory if it has the note of a daemon. Others are not the supervisor's.
func removeLeftover(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, noteFile)); err != nil {
		return nil
	}
	return removeDir(dir)
}

// removeDir removes a daemon's files, but none inside of its mounts, and its directory unless it has other files too.
func removeDir(dir string) error {
	shm := filepath.Join(dir, shmDir)
	for mounted(shm) { // Containers that have it mounted keep it.
		if err := unix.Unmount(shm, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount shared memory at %s: %w", shm, err)
		}
	}
	// The note is last: with it the next supervisor continues.
	for _, name := range []string{pipeDir, daemonDir, shmDir, logDir, noteFile + ".tmp", noteFile} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove the directory of an MPS daemon: %w", err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("remove the directory of an MPS daemon: %w", err)
	}
	return nil
}

const noteFile = "daemon.json"

// note records a daemon for the next supervisor.
type note struct {
	BootID string      `json:"bootID"`
	Daemon mpsd.Daemon `json:"daemon"`
	// PID and Started identify the daemon's process if it outlives its supervisor.
	PID     int    `json:"pid,omitempty"`
	Started string `json:"started,omitempty"`
}

func readNote(dir string) (n note, err error) {
	data, err := os.ReadFile(filepath.Join(dir, noteFile))
	if err != nil {
		return note{}, err
	}
	if err := json.Unmarshal(data, &n); err != nil {
		return note{}, fmt.Errorf("its note is not readable: %w", err)
	}
	return n, nil
}

// writeNote replaces the note. It need not be durable: it has no use after the machine went down.
func writeNote(dir, boot string, want mpsd.Daemon, pid int) error {
	n := note{BootID: boot, Daemon: want, PID: pid}
	if pid != 0 {
		n.Started, _ = started(pid) // After an error it has ended, and there is no process to end later.
	}
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, noteFile)
	if err = os.WriteFile(path+".tmp", data, 0o600); err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		return fmt.Errorf("note an MPS daemon: %w", err)
	}
	return nil
}

// kill ends a process that outlived its supervisor, with its process group, unless its number belongs to another
// process now. If only its servers are left, the group is known by their environment.
func (n note) kill() {
	now, err := started(n.PID)
	if err == nil && now != n.Started || err != nil && !n.leftServers() {
		return
	}
	_ = syscall.Kill(-n.PID, syscall.SIGKILL)
}

// leftServers reports whether a process of the daemon's group runs that has the daemon's environment.
func (n note) leftServers() bool {
	entries, _ := os.ReadDir("/proc") // Without entries there is no process to end.
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			return false
		}
		group, err := unix.Getpgid(pid)
		if err != nil || group != n.PID {
			return false
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		variables := strings.Split(string(environ), "\x00")
		return err == nil && slices.Contains(variables, pipeVariable) &&
			slices.Contains(variables, deviceVariable+n.Daemon.UUID)
	})
}

func started(pid int) (string, error) {
	at, err := procfs.Start("/proc", uint32(pid))
	return strconv.FormatUint(at, 10), err
}
