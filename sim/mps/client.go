// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// Client is a CUDA process that computes through MPS.
type Client struct {
	Info
	conn net.Conn
	read *bufio.Reader
}

// Connect does what CUDA does at its start: it finds the daemon through the environment and waits for a server. root
// is "/" except in tests.
func Connect(ctx context.Context, environ []string, root string) (*Client, error) {
	env := environment(environ)
	dir := filepath.Join(root, env[envPipe])
	conn, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, ControlSocket))
	if err != nil {
		return nil, fmt.Errorf("MPS client failed to connect to the MPS control daemon or the MPS server: %w", err)
	}
	c := &Client{conn: conn, read: bufio.NewReader(conn)}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	r, err := c.ask(request{Hello: &hello{Memory: env[envMemory], Threads: env[envThreads], Name: filepath.Base(os.Args[0])}})
	if err == nil && r.Info == nil {
		err = errors.New("the MPS server gave no context")
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.Info = *r.Info
	needed := map[string]string{"the device node": filepath.Join(root, "dev", fmt.Sprintf("nvidia%d", c.Minor))}
	if c.Shm != "" {
		needed["shared memory"] = filepath.Join(root, "dev/shm", c.Shm)
	}
	for what, path := range needed {
		if _, err := os.Stat(path); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("%s of the MPS server is not in this container: %w", what, err)
		}
	}
	return c, nil
}

// Alloc allocates memory of the device, in bytes.
func (c *Client) Alloc(bytes uint64) error {
	_, err := c.ask(request{Alloc: bytes})
	return err
}

// Load keeps a percentage of the device's multiprocessors busy, within the client's limit.
func (c *Client) Load(percent int) error {
	_, err := c.ask(request{Load: percent})
	return err
}

// Fault accesses an illegal address, which ends the work of all clients of the server. It returns the error of that.
func (c *Client) Fault() error {
	_, err := c.ask(request{Fault: true})
	return err
}

// Lost waits until the connection breaks and returns the cause: the server ended, or Close was called.
func (c *Client) Lost() error {
	_, err := c.read.ReadByte()
	if err == nil {
		return errors.New("the MPS server sent an unexpected message")
	}
	return fmt.Errorf("the MPS server is gone: %w", err)
}

// Close ends the process's context.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) ask(r request) (response, error) { return exchange(c.conn, c.read, r) }

func exchange(conn net.Conn, read *bufio.Reader, r request) (response, error) {
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return response{}, fmt.Errorf("the MPS server is gone: %w", err)
	}
	line, err := read.ReadBytes('\n')
	if err != nil {
		return response{}, fmt.Errorf("the MPS server is gone: %w", err)
	}
	var answer response
	if err := json.Unmarshal(line, &answer); err != nil {
		return response{}, fmt.Errorf("the MPS server's answer is not readable: %w", err)
	}
	if answer.Error != "" {
		return response{}, errors.New(answer.Error)
	}
	return answer, nil
}

func environment(environ []string) map[string]string {
	out := map[string]string{envPipe: defaultPipe, envLog: defaultLog}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if value != "" || strings.HasPrefix(name, "GPUSIM") {
			out[name] = value
		}
	}
	return out
}
