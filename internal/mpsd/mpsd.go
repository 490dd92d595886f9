// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package mpsd is the protocol between the kubelet plugin and the supervisor of MPS daemons: JSON over HTTP on a unix
// socket, which only root can open. The supervisor outlives the plugin, so either side can be older: new versions
// only add fields.
package mpsd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var (
	ErrAway = errors.New("the supervisor of MPS daemons does not run on this node")
	// ErrRefused means that the supervisor answered with an error.
	ErrRefused = errors.New("the supervisor of MPS daemons")
)

// Client calls the supervisor. Its methods are safe for concurrent use.
type Client struct{ http http.Client }

// NewClient makes a Client. It does not connect yet.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Client{http: http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Ensure makes a daemon run as described, and returns once it serves. A running daemon only gets new limits, unless
// its device or mode changed. Ensure waits until the context ends.
func (c *Client) Ensure(ctx context.Context, d Daemon) (Status, error) {
	var s Status
	path := "/v1/daemons/" + url.PathEscape(d.Name)
	if deadline, ok := ctx.Deadline(); ok {
		const answerTime = 500 * time.Millisecond // maximum time for an answer to arrive
		path += "?wait=" + url.QueryEscape(max(time.Until(deadline)-answerTime, 0).String())
	}
	err := c.call(ctx, http.MethodPut, path, d, &s)
	return s, err
}

// Stop ends a daemon and removes its directory. Stopping an unknown daemon succeeds.
func (c *Client) Stop(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/daemons/"+url.PathEscape(name), nil, nil)
}

// List returns the status of all daemons. With the version of an earlier answer it waits for a change, up to half a
// minute.
func (c *Client) List(ctx context.Context, after string) (List, error) {
	var l List
	err := c.call(ctx, http.MethodGet, "/v1/daemons?after="+url.QueryEscape(after), nil, &l)
	return l, err
}

func (c *Client) call(ctx context.Context, method, path string, send, receive any) error {
	var body io.Reader
	if send != nil {
		data, err := json.Marshal(send)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://supervisor"+path, body)
	if err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if now, err := uptime(); err == nil {
			req.Header.Set(untilHeader, strconv.FormatInt(int64(now+time.Until(deadline)), 10))
		}
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return ErrAway
	case ctx.Err() != nil:
		return fmt.Errorf("wait for the supervisor of MPS daemons: %w", context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("ask the supervisor of MPS daemons: %w", errors.Unwrap(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("%w: %s", ErrRefused, strings.ToValidUTF8(strings.TrimSpace(string(text)), "?"))
	}
	if receive == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(receive); err != nil {
		return fmt.Errorf("read the answer of the supervisor of MPS daemons: %w", err)
	}
	return nil
}

// SocketName is the name of the supervisor's socket in the directory of the daemons.
const SocketName = "supervisor.sock"

// Daemon is the desired state of an MPS control daemon.
type Daemon struct {
	// Name is the name of the device and of the daemon's directory.
	Name string `json:"name"`
	// UUID is the UUID of the GPU or MIG device.
	UUID string `json:"uuid"`
	// MemoryLimit is the default memory limit of each client, in bytes. nil means no limit.
	MemoryLimit *uint64 `json:"memoryLimit,omitempty"`
	// Threads is the default limit of each client's SMs, in percent. 0 means all SMs.
	Threads int `json:"threads,omitempty"`
	// Users is "many" for a daemon that must serve several users at once, "one" for a daemon that must not, and empty
	// for several users if the driver supports it.
	Users string `json:"users,omitempty"`
}

// Status is the actual state of a daemon.
type Status struct {
	Daemon
	// PID is its process as the supervisor sees it, 0 while it does not run.
	PID int `json:"pid,omitempty"`
	// Since is the time at which it became ready, zero before.
	Since time.Time `json:"since,omitzero"`
	// Restarts counts restarts after unexpected exits. Each one loses the clients' computations.
	Restarts int `json:"restarts,omitempty"`
	// Faults counts the faults of its servers. Each one loses the clients' computations.
	Faults int `json:"faults,omitempty"`
	// ManyUsers means that it serves several users at once.
	ManyUsers bool `json:"manyUsers,omitempty"`
	// Problem is the reason why it does not run, or of its last exit.
	Problem string `json:"problem,omitempty"`
}

// List holds the status of all daemons. Version changes with each change of a status.
type List struct {
	Version string   `json:"version"`
	Daemons []Status `json:"daemons"`
}

var (
	nameForm = regexp.MustCompile(`^gpu-([a-z0-9-]{0,58}[a-z0-9])$`)
	uuidForm = regexp.MustCompile(`^(GPU|MIG)-[0-9a-zA-Z/-]{1,80}$`)
)

// IsDeviceName reports whether a daemon can have the name.
func IsDeviceName(name string) bool { return nameForm.MatchString(name) }

// Validate returns an error for values that could be abused in a path, an argument or a command line.
func (d Daemon) Validate() error {
	switch {
	case !IsDeviceName(d.Name):
		return fmt.Errorf("name: %q is not a device's name", d.Name)
	case !uuidForm.MatchString(d.UUID):
		return fmt.Errorf("uuid: %q is not a UUID of a GPU or MIG device", d.UUID)
	case d.Threads < 0 || d.Threads > 100:
		return fmt.Errorf("threads: %d is not a percentage", d.Threads)
	case d.MemoryLimit != nil && *d.MemoryLimit < 1<<20:
		return fmt.Errorf("memoryLimit: %d bytes is less than 1 MiB", *d.MemoryLimit)
	case d.Users != "" && d.Users != "one" && d.Users != "many":
		return fmt.Errorf("users: %q is neither one nor many", d.Users)
	}
	return nil
}

// untilHeader is the time up to which the plugin waits for an answer: nanoseconds since the boot.
const untilHeader = "Wait-Until"

// WithDeadline returns the context of a request, which ends when the plugin no longer waits. The end of the connection
// would be too late: a supervisor that hung finds the requests of successive claims at once, and serves them in any
// order.
func WithDeadline(r *http.Request) (context.Context, context.CancelFunc) {
	until, err := strconv.ParseInt(r.Header.Get(untilHeader), 10, 64)
	now, clockErr := uptime()
	if err != nil || clockErr != nil {
		return context.WithCancel(r.Context()) // An older plugin sends no time.
	}
	return context.WithTimeout(r.Context(), time.Duration(until)-now)
}

// uptime is the time since the boot. It is the same for both programs, and cannot be set.
func uptime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano()), err
}
