// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"gpu-dra-driver/test/cluster/internal/control"
)

// verbTimeout limits stop, start, restart and reboot.
const verbTimeout = 2 * time.Minute

func (n *node) serve() {
	for {
		conn, err := n.listener.AcceptUnix()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			request, files, err := control.Receive(conn)
			if err != nil {
				json.NewEncoder(conn).Encode(control.Response{Error: err.Error()})
				return
			}
			response := n.answer(conn, request, files)
			json.NewEncoder(conn).Encode(response)
		}()
	}
}

func (n *node) answer(conn *net.UnixConn, request control.Request, files []*os.File) control.Response {
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), verbTimeout)
	defer cancel()
	var err error
	switch request.Verb {
	case "status":
		return control.Response{Status: n.supervisor.statuses()}
	case "start":
		err = n.supervisor.start(ctx, request.Component)
	case "stop":
		err = n.supervisor.stop(ctx, request.Component)
	case "restart":
		if err = n.supervisor.stop(ctx, request.Component); err == nil {
			err = n.supervisor.start(ctx, request.Component)
		}
	case "reboot":
		err = n.reboot(ctx)
	case "exec":
		code, err := n.exec(conn, request, files)
		if err != nil {
			return control.Response{Error: err.Error(), ExitCode: 127}
		}
		return control.Response{ExitCode: code}
	case "down":
		os.Exit(0) // the kernel does the rest
	default:
		err = fmt.Errorf("unknown request %q", request.Verb)
	}
	if err != nil {
		return control.Response{Error: err.Error()}
	}
	return control.Response{}
}

// exec runs a program in the node with the caller's standard files. The program and its children end when the caller
// disconnects.
func (n *node) exec(conn *net.UnixConn, request control.Request, files []*os.File) (int, error) {
	if len(request.Args) == 0 || len(files) != 3 {
		return 0, fmt.Errorf("exec needs a program and three files, got %d arguments and %d files", len(request.Args), len(files))
	}
	dir := request.Dir
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		dir = "/"
	}
	// The node's environment overrides the caller's.
	env := slices.DeleteFunc(request.Env, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(environment(n.spec), func(own string) bool { return strings.HasPrefix(own, name+"=") })
	})
	argv := slices.Clone(request.Args)
	argv[0] = lookPath(argv[0], n.spec.PATH())
	pid, done, err := n.procs.start(argv, &syscall.ProcAttr{
		Dir:   dir,
		Env:   append(env, environment(n.spec)...),
		Files: []uintptr{files[0].Fd(), files[1].Fd(), files[2].Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		conn.Read(make([]byte, 1)) // no data arrives: this returns when the caller is gone
		select {
		case <-ended:
		default:
			syscall.Kill(-pid, syscall.SIGKILL)
		}
	}()
	status := <-done
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}
