// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package control lets outside commands call a node: a unix socket in its directory, one request a connection.
//
// The request is one JSON line; a request to run a program also passes its three standard files. The answer is one
// JSON line. When a caller disconnects, its program ends.
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Request is a caller's request.
type Request struct {
	// Verb is status, stop, start, restart, exec, reboot or down.
	Verb      string   `json:"verb"`
	Component string   `json:"component,omitempty"`
	Args      []string `json:"args,omitempty"`
	Dir       string   `json:"dir,omitempty"`
	Env       []string `json:"env,omitempty"`
}

// Response is the result of a request.
type Response struct {
	Error    string   `json:"error,omitempty"`
	ExitCode int      `json:"exitCode,omitempty"`
	Status   []Status `json:"status,omitempty"`
}

// Status is the status of a component.
type Status struct {
	Component string    `json:"component"`
	PID       int       `json:"pid,omitempty"` // in the node's PID namespace; zero when it does not run
	Since     time.Time `json:"since"`         // of its start or, when it does not run, its end
	State     string    `json:"state"`         // running, stopped or how it ended
}

const socket = "control.sock"

// maxRequest limits a request with its environment, in bytes.
const maxRequest = 1 << 20

// Listen makes the socket in dir.
func Listen(dir string) (*net.UnixListener, error) {
	path, done, err := short(dir)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", filepath.Join(dir, socket), err)
	}
	l.SetUnlinkOnClose(false) // done removes the name
	return l, nil
}

// Call sends one request to the node in dir and waits for the answer. An error in the answer becomes its error.
// files, for exec, are passed to the node; they stay open here.
func Call(dir string, request Request, files ...*os.File) (Response, error) {
	path, done, err := short(dir)
	if err != nil {
		return Response{}, err
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	done()
	if err != nil {
		return Response{}, fmt.Errorf("reach the node through %s: %w", filepath.Join(dir, socket), err)
	}
	defer conn.Close()
	b, err := json.Marshal(request)
	if err != nil {
		return Response{}, err
	}
	if len(b) >= maxRequest {
		return Response{}, fmt.Errorf("request of %d bytes: arguments and environment must stay under %d", len(b), maxRequest)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	// The files are sent with the first byte.
	if _, _, err := conn.WriteMsgUnix(b[:1], rights, nil); err != nil {
		return Response{}, err
	}
	if _, err := conn.Write(append(b[1:], '\n')); err != nil {
		return Response{}, err
	}
	var response Response
	if err := json.NewDecoder(conn).Decode(&response); err != nil {
		return Response{}, fmt.Errorf("%s: the node went away before it answered: %w", request.Verb, err)
	}
	if response.Error != "" {
		return response, errors.New(response.Error)
	}
	return response, nil
}

// Receive reads a request and its files. The caller must close the files.
func Receive(conn *net.UnixConn) (Request, []*os.File, error) {
	first := make([]byte, 1)
	oob := make([]byte, unix.CmsgSpace(3*4))
	_, oobn, _, _, err := conn.ReadMsgUnix(first, oob)
	if err != nil {
		return Request{}, nil, err
	}
	files, err := received(oob[:oobn])
	if err != nil {
		return Request{}, nil, err
	}
	closeAll := func() {
		for _, f := range files {
			f.Close()
		}
	}
	line := first
	buffer := make([]byte, 64<<10)
	for line[len(line)-1] != '\n' {
		n, err := conn.Read(buffer)
		if err != nil {
			closeAll()
			return Request{}, nil, err
		}
		if line = append(line, buffer[:n]...); len(line) > maxRequest {
			closeAll()
			return Request{}, nil, errors.New("request too long")
		}
	}
	var request Request
	if err := json.Unmarshal(line, &request); err != nil {
		closeAll()
		return Request{}, nil, fmt.Errorf("read request: %w", err)
	}
	return request, files, nil
}

func received(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

// short returns a name of the socket within the limit of a socket address, 107 bytes, for any depth of dir.
func short(dir string) (path string, done func(), err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("open %s: %w", dir, err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, socket), func() { unix.Close(fd) }, nil
}
