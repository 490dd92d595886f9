// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/test/cluster/internal/sandbox"
	"gpu-dra-driver/test/cluster/internal/spec"
)

// WorkerCommand is the program's hidden command with which the first node starts a further one.
const WorkerCommand = "__worker"

// workerReportFD receives a further node's Reports until it is up. Its standard input ends when its files are
// written.
const workerReportFD = 3

// worker is a further node, in the first node's process.
type worker struct {
	spec    spec.Spec
	release *os.File // closed when the node's configuration and certificates are written
	reports *os.File
}

// startWorkers starts the first process of each further node. It shares this one's network, and has its own PID and
// mount namespaces.
func (n *node) startWorkers(keep []string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	for _, number := range n.spec.Members()[1:] {
		released, release, err := os.Pipe()
		if err != nil {
			return err
		}
		reports, report, err := os.Pipe()
		if err != nil {
			return err
		}
		argv := append([]string{program, WorkerCommand, n.spec.Dir, strconv.Itoa(number)}, keep...)
		_, _, err = n.procs.start(argv, &syscall.ProcAttr{
			Dir:   "/",
			Env:   os.Environ(),
			Files: []uintptr{released.Fd(), os.Stdout.Fd(), os.Stderr.Fd(), report.Fd()},
			Sys: &syscall.SysProcAttr{
				Setsid:     true,
				Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
			},
		})
		released.Close()
		report.Close()
		if err != nil {
			return fmt.Errorf("start node %d in namespaces of its own: %w", number, err)
		}
		n.workers = append(n.workers, &worker{n.spec.On(number), release, reports})
	}
	return nil
}

// releaseWorkers signals the further nodes that their files are written.
func (n *node) releaseWorkers() {
	for _, w := range n.workers {
		w.release.Close()
	}
}

// awaitWorkers waits until every further node is up.
func (n *node) awaitWorkers(ctx context.Context) error {
	errs := make(chan error, len(n.workers))
	for _, w := range n.workers {
		go func() { errs <- w.await() }()
	}
	for range n.workers {
		select {
		case err := <-errs:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// await reads all of a further node's reports.
func (w *worker) await() error {
	defer w.reports.Close()
	for reports := json.NewDecoder(w.reports); ; {
		var report Report
		switch err := reports.Decode(&report); {
		case err != nil:
			return fmt.Errorf("%s ended before it was up\n%s", w.spec.NodeName(), tail(w.spec.On(1).Log("onenode"), 15))
		case report.Error != "":
			return fmt.Errorf("%s: %s", w.spec.NodeName(), report.Error)
		case report.Up:
			return nil
		}
	}
}

// onFurtherNode reports whether a process belongs to a further node.
func (n *node) onFurtherNode(pid int) bool {
	for _, w := range n.workers {
		if sandbox.InCgroup(pid, w.spec.Cgroup()) {
			return true
		}
	}
	return false
}

// WorkerMain is the first process of a further node; args are the cluster's directory, the node's number and the
// directories to keep visible. It returns only if the node could not start.
func WorkerMain(args []string) error {
	if len(args) < 2 {
		return errors.New("a further node needs a directory and a number")
	}
	number, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	unix.CloseOnExec(workerReportFD)
	return tellAndServe(os.NewFile(workerReportFD, "report"), func(report *json.Encoder) (*node, error) {
		return workerUp(args[0], number, args[2:], report)
	})
}

func workerUp(dir string, number int, keep []string, report *json.Encoder) (*node, error) {
	s, err := spec.Load(dir)
	if err != nil {
		return nil, err
	}
	n := &node{spec: s.On(number), procs: newProcesses()}
	return n, walk([]step{
		{"namespaces, mounts, cgroups", func(context.Context) error {
			if err := n.enter(); err != nil {
				return err
			}
			if err := n.mount(keep); err != nil {
				return err
			}
			if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
				return err
			}
			return n.listen()
		}},
		{"containerd, pause image", func(ctx context.Context) error {
			if err := n.startAll(ctx, "containerd"); err != nil {
				return err
			}
			return n.importPause(ctx)
		}},
		// A kubelet without an API server retries only after a while.
		{"wait for kube-apiserver", func(ctx context.Context) error {
			return poll(ctx, func() error { return n.probe.apiServerReady(ctx) })
		}},
		{"kubelet", func(ctx context.Context) error { return n.startAll(ctx, "kubelet") }},
		{"node Ready", n.ready},
	}, report)
}
