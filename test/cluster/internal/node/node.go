// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package node is the first process inside a cluster's namespaces: it prepares the node's environment, starts the
// components, reaps their orphans and answers requests from outside.
//
// When it ends, for any reason, the kernel kills every process of the PID namespace, and removes the node's mounts,
// links and addresses. It ends with its owner: by the parent-death signal or by the end of a pipe.
//
// Further nodes (worker.go) are PID and mount namespaces inside the first node's, which end with it.
//
// Trap: this package must not use os/exec (see processes.go).
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
	OwnerFD               // end of file when the owner is gone
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

// upTimeout limits each step of the start; a slow machine under load needs most of it.
const upTimeout = 2 * time.Minute

// Main is the first process. It returns only if the node could not start.
func Main(dir string, keep []string) error {
	for fd := ListenerFD; fd <= ReportFD; fd++ {
		unix.CloseOnExec(fd)
	}
	go func() {
		io.Copy(io.Discard, os.NewFile(OwnerFD, "owner"))
		os.Exit(1)
	}()
	return tellAndServe(os.NewFile(ReportFD, "report"), func(report *json.Encoder) (*node, error) {
		return up(dir, keep, report)
	})
}

// tellAndServe starts a node, reports its progress, and then answers requests.
func tellAndServe(reports *os.File, up func(*json.Encoder) (*node, error)) error {
	report := json.NewEncoder(reports)
	n, err := up(report)
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

// node is a running node.
type node struct {
	spec       spec.Spec
	procs      *processes
	supervisor *supervisor
	probe      *prober
	listener   *net.UnixListener
	mounts     []string // those that a reboot keeps
	workers    []*worker
}

func up(dir string, keep []string, report *json.Encoder) (*node, error) {
	s, err := spec.Load(dir)
	if err != nil {
		return nil, err
	}
	n := &node{spec: s, procs: newProcesses()}
	steps := []step{
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
			if err := n.ready(ctx); err != nil {
				return err
			}
			return poll(ctx, func() error { return n.probe.defaultServiceAccount(ctx) })
		}},
	}
	if s.Nodes > 1 {
		steps = append(steps, step{"further nodes Ready", n.awaitWorkers})
	}
	return n, walk(steps, report)
}

// step is one part of the start.
type step struct {
	name string
	do   func(context.Context) error
}

// walk runs the steps in order and reports each.
func walk(steps []step, report *json.Encoder) error {
	last := time.Now()
	for _, st := range steps {
		ctx, cancel := context.WithTimeout(context.Background(), upTimeout)
		err := st.do(ctx)
		cancel()
		if err == nil {
			// The reader of the reports may be gone: the node then ends with its owner.
			err = report.Encode(Report{Step: st.name, Took: time.Since(last)})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", st.name, err)
		}
		last = time.Now()
	}
	return nil
}

// ready waits until the API server reports the node as Ready.
func (n *node) ready(ctx context.Context) error {
	if err := poll(ctx, func() error { return n.probe.nodeReady(ctx, "") }); err != nil {
		return fmt.Errorf("%w\n%s", err, tail(n.spec.Log("kubelet"), 15))
	}
	return nil
}

// surroundings prepares the components' environment.
func (n *node) surroundings(keep []string) error {
	if err := n.enter(); err != nil {
		return err
	}
	// Before this node's own mounts: every node's file system starts from the machine's.
	if err := n.startWorkers(keep); err != nil {
		return err
	}
	if err := n.mount(keep); err != nil {
		return err
	}
	s := n.spec
	addresses := []string{s.NodeIP(), spec.ServiceIP}
	for _, number := range s.Members()[1:] {
		addresses = append(addresses, s.On(number).NodeIP())
	}
	if err := sandbox.Loopback(addresses...); err != nil {
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
	n.releaseWorkers()
	if err := n.listen(); err != nil {
		return err
	}

	passed := os.NewFile(ListenerFD, "listener")
	outside, err := net.FileListener(passed)
	passed.Close()
	if err != nil {
		return err
	}
	// The same address works inside, so that one kubeconfig serves both.
	inside, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port))
	if err != nil {
		return err
	}
	go forward(outside)
	go forward(inside)
	return nil
}

// enter gives the node its host name and its cgroup.
func (n *node) enter() error {
	if err := unix.Sethostname([]byte(n.spec.NodeName())); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	return sandbox.JoinCgroup(n.spec.Cgroup())
}

// mount prepares the node's file system.
func (n *node) mount(keep []string) error {
	if err := sandbox.Mounts(n.spec, keep...); err != nil {
		return err
	}
	var err error
	n.mounts, err = sandbox.MountIDs()
	return err
}

// listen opens the sockets for requests. The certificates must exist.
func (n *node) listen() error {
	var err error
	if n.probe, err = newProber(n.spec); err != nil {
		return err
	}
	n.supervisor = newSupervisor(n.spec, n.procs, n.probe)
	n.listener, err = control.Listen(n.spec.ControlDir())
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

// importPause imports the sandbox image into containerd.
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
