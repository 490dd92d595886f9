// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package owner holds the processes of a cluster that live outside its namespaces.
//
// The owner starts the node's first process and ends with it; the node ends with its owner. The watcher, a process of
// its own session, outlives both for a moment. It holds the reading end of a pipe and they hold the writing ends, so
// it detects any end of both. Then it removes the cgroups and the cluster's directory, which namespaces do not. Only
// the watcher cleans up, after `down`, Ctrl-C or SIGKILL.
//
// Trap: a parent-death signal comes when the parent's *thread* ends. A child with such a signal must be started on a
// thread that stays, such as the main goroutine's once it is locked in an init function.
package owner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"gpu-dra-driver/test/cluster/internal/node"
	"gpu-dra-driver/test/cluster/internal/spec"
)

// Hidden commands of the program, with which it starts itself.
const (
	OwnerCommand = "__owner"
	NodeCommand  = "__node"
	WatchCommand = "__watch"
)

// File descriptors that Start passes to the owner.
const (
	lockFD = 3 + iota
	reportFD
)

// Start runs the owner of a cluster whose Spec is saved and whose lock is held, and passes each Report to report
// until the node is up. With tethered, the cluster ends with the calling process; the caller must be on its main
// thread. On an error, the cluster is being removed.
func Start(s spec.Spec, lock *os.File, tethered bool, tell func(node.Report)) error {
	log, err := os.OpenFile(s.Log("onenode"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd, err := self(OwnerCommand, s.Dir)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{lock, w}
	if tethered {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	err = cmd.Start()
	w.Close()
	lock.Close()
	if err != nil {
		return fmt.Errorf("start the cluster's owner: %w", err)
	}
	go cmd.Wait()
	reports := json.NewDecoder(r)
	for {
		var report node.Report
		err := reports.Decode(&report)
		switch {
		case err != nil:
			// The log may have been unlinked, but it is open here.
			b, _ := io.ReadAll(io.NewSectionReader(log, 0, 1<<20))
			lines := strings.Split(strings.TrimSpace(string(b)), "\n")
			return fmt.Errorf("the node ended before it was up\n  %s", strings.Join(lines[max(0, len(lines)-20):], "\n  "))
		case report.Error != "":
			return errors.New(report.Error)
		case report.Up:
			return nil
		}
		tell(report)
	}
}

// Main is the owner: it returns when the node has ended.
func Main(dir string) error {
	syscall.CloseOnExec(lockFD)
	syscall.CloseOnExec(reportFD)
	lock, report := os.NewFile(lockFD, "lock"), os.NewFile(reportFD, "report")
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT)
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)

	s, err := spec.Load(dir)
	if err != nil {
		return err
	}
	lifeR, lifeW, err := os.Pipe()
	if err != nil {
		return err
	}
	watcher, err := self(WatchCommand, s.Dir)
	if err != nil {
		return err
	}
	watcher.Stdin = lifeR
	watcher.ExtraFiles = []*os.File{lock}
	if err := watcher.Start(); err != nil {
		return fmt.Errorf("start the watcher: %w", err)
	}
	lock.Close()
	lifeR.Close()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.Port = listener.Addr().(*net.TCPAddr).Port
	if err := s.Save(); err != nil {
		return err
	}
	listenerFile, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	ownerR, ownerW, err := os.Pipe()
	if err != nil {
		return err
	}
	first, err := self(append([]string{NodeCommand, s.Dir}, keep(s)...)...)
	if err != nil {
		return err
	}
	first.Stdout, first.Stderr = os.Stdout, os.Stderr
	first.ExtraFiles = []*os.File{listenerFile, ownerR, lifeW, report}
	first.SysProcAttr.Pdeathsig = syscall.SIGKILL
	first.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS
	if err := first.Start(); err != nil {
		err = fmt.Errorf("start the node in namespaces of its own (it needs root): %w", err)
		json.NewEncoder(report).Encode(node.Report{Error: err.Error()})
		return err
	}
	for _, c := range []io.Closer{listener, listenerFile, ownerR, report} {
		c.Close()
	}
	go func() {
		<-terminate
		first.Process.Kill()
	}()
	err = first.Wait()
	ownerW.Close()
	lifeW.Close()
	return err
}

// keep lists the directories that must stay visible in the node.
func keep(s spec.Spec) []string {
	return append([]string{s.Dir}, s.Bins...)
}

// self returns a command that runs this program again, in a session of its own and without standard files.
func self(args ...string) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, nil
}

// Kill ends the owner of the cluster in dir, for a node that does not answer. The other processes end with it.
func Kill(dir string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	want := []byte("\x00" + OwnerCommand + "\x00" + dir + "\x00")
	for _, e := range entries {
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !bytes.HasSuffix(cmdline, want) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err == nil {
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return nil
}
