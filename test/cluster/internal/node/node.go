// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package node is the first process inside a cluster's namespaces: it builds the node's surroundings,
// starts the components, reaps what they leave and answers requests from outside.
//
// When it ends, for whatever reason, the kernel kills every process of the PID namespace, and with them go
// the node's mounts, links and addresses. It ends with its owner: by the parent-death signal and, should
// that not come, by the end of a pipe.
//
// Trap: nothing here may use os/exec (processes.go says why).
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/test/cluster/internal/control"
	"gpu-dra-driver/test/cluster/internal/image"
	"gpu-dra-driver/test/cluster/internal/sandbox"
	"gpu-dra-driver/test/cluster/internal/spec"
)

// File descriptors that the owner passes, after the standard three.
const (
	ListenerFD = 3 + iota // listens for the API server's clients on the machine's loopback
	OwnerFD               // reads its end when the owner is gone
	LifeFD                // held open for the watcher, which reads its end when the node is gone
	ReportFD              // takes Reports until the node is up
)

// Report is one line of progress.
type Report struct {
	Step  string        `json:"step,omitempty"`
	Took  time.Duration `json:"took,omitempty"`
	Up    bool          `json:"up,omitempty"`
	Error string        `json:"error,omitempty"`
}

// upTimeout bounds each step of the way up; a slow machine that compiles beside needs most of it.
const upTimeout = 2 * time.Minute

// Main is the first process. It returns only when the node could not be brought up.
func Main(dir string, keep []string) error {
	for fd := ListenerFD; fd <= ReportFD; fd++ {
		unix.CloseOnExec(fd)
	}
	go func() {
		io.Copy(io.Discard, os.NewFile(OwnerFD, "owner"))
		os.Exit(1)
	}()
	reports := os.NewFile(ReportFD, "report")
	report := json.NewEncoder(reports)
	n, err := up(dir, keep, report)
	if err != nil {
		report.Encode(Report{Error: err.Error()})
		return err
	}
	if err := report.Encode(Report{Up: true}); err != nil {
		return err
	}
	reports.Close()
	n.serve()
	return nil
}

// node is a node that is up.
type node struct {
	spec       spec.Spec
	procs      *processes
	supervisor *supervisor
	probe      *prober
	listener   *net.UnixListener
	mounts     []string // those that a reboot leaves
}

func up(dir string, keep []string, report *json.Encoder) (*node, error) {
	s, err := spec.Load(dir)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	last := time.Now()
	step := func(name string, do func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, upTimeout)
		defer cancel()
		if err := do(ctx); err != nil {
			return err
		}
		// Who reads the reports wants the node; when he is gone before it is up, nobody does.
		if err := report.Encode(Report{Step: name, Took: time.Since(last)}); err != nil {
			return err
		}
		last = time.Now()
		return nil
	}
	n := &node{spec: s, procs: newProcesses()}
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"namespaces, mounts, cgroups", func(context.Context) error { return n.surroundings(keep) }},
		{"etcd and containerd", func(ctx context.Context) error { return n.startAll(ctx, "etcd", "containerd") }},
		{"pause image, kube-apiserver", func(ctx context.Context) error {
			imported := make(chan error, 1)
			go func() { imported <- n.importPause(ctx) }()
			if err := n.supervisor.start(ctx, "kube-apiserver"); err != nil {
				return err
			}
			return <-imported
		}},
		{"kubelet, scheduler, controller manager", func(ctx context.Context) error {
			return n.startAll(ctx, "kubelet", "kube-scheduler", "kube-controller-manager")
		}},
		{"node Ready, default service account", func(ctx context.Context) error {
			if err := poll(ctx, func() error { return n.probe.nodeReady(ctx, "") }); err != nil {
				return fmt.Errorf("%w\n%s", err, tail(s.Log("kubelet"), 15))
			}
			return poll(ctx, func() error { return n.probe.defaultServiceAccount(ctx) })
		}},
	}
	for _, st := range steps {
		if err := step(st.name, st.do); err != nil {
			return nil, fmt.Errorf("%s: %w", st.name, err)
		}
	}
	return n, nil
}

// surroundings builds what the components need to find.
func (n *node) surroundings(keep []string) error {
	s := n.spec
	if err := unix.Sethostname([]byte(spec.NodeName)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := sandbox.JoinCgroup(s.Cgroup()); err != nil {
		return err
	}
	if err := sandbox.Mounts(s, keep...); err != nil {
		return err
	}
	mounts, err := sandbox.MountIDs()
	if err != nil {
		return err
	}
	n.mounts = mounts
	if err := sandbox.Loopback(spec.NodeIP, spec.ServiceIP); err != nil {
		return err
	}
	if s.Snapshotter = "overlayfs"; !sandbox.CanOverlay(s.Node("containerd")) {
		s.Snapshotter = "native"
	}
	n.spec = s
	if err := s.Save(); err != nil {
		return err
	}
	if err := writeFiles(s); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if n.probe, err = newProber(s); err != nil {
		return err
	}
	n.supervisor = newSupervisor(s, n.procs, n.probe)

	passed := os.NewFile(ListenerFD, "listener")
	outside, err := net.FileListener(passed)
	passed.Close()
	if err != nil {
		return err
	}
	// The same address works inside, so that one kubeconfig does for both.
	inside, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port))
	if err != nil {
		return err
	}
	go forward(outside)
	go forward(inside)
	n.listener, err = control.Listen(s.Dir)
	return err
}

func (n *node) startAll(ctx context.Context, names ...string) error {
	errs := make(chan error, len(names))
	for _, name := range names {
		go func() { errs <- n.supervisor.start(ctx, name) }()
	}
	for range names {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// importPause gives containerd the sandbox image.
func (n *node) importPause(ctx context.Context) error {
	program, err := n.spec.Program("pause")
	if err != nil {
		return err
	}
	archive := n.spec.Node("pause.tar")
	if err := image.Write(archive, spec.PauseImage, program, "pause"); err != nil {
		return fmt.Errorf("make the pause image: %w", err)
	}
	log := n.spec.Log("pause-import")
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer f.Close()
	ctr, err := n.spec.Program("ctr")
	if err != nil {
		return err
	}
	_, done, err := n.procs.start([]string{ctr, "--namespace", "k8s.io", "images", "import", archive}, &syscall.ProcAttr{
		Dir: "/", Env: environment(n.spec), Files: []uintptr{f.Fd(), f.Fd(), f.Fd()},
	})
	if err != nil {
		return err
	}
	select {
	case status := <-done:
		if status != 0 {
			return fmt.Errorf("import the pause image: ctr %s\n%s", describe(status), tail(log, 15))
		}
	case <-ctx.Done():
		return fmt.Errorf("import the pause image: %w\n%s", ctx.Err(), tail(log, 15))
	}
	return os.Remove(archive)
}
