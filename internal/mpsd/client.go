// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

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
	"strings"
	"syscall"
	"time"
)

// What a Client's errors can be.
var (
	// ErrAway says that no supervisor listens.
	ErrAway = errors.New("the supervisor of MPS daemons does not run on this node")
	// ErrRefused says that the supervisor was reached and could not do it.
	ErrRefused = errors.New("the supervisor of MPS daemons")
)

// Client speaks to the supervisor. Several goroutines may use it.
type Client struct{ http http.Client }

// NewClient does not connect yet.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Client{http: http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Ensure has a daemon run as described and returns once it serves. A daemon that runs is only told its limits, unless
// its device is another by now. It waits as long as the context does.
func (c *Client) Ensure(ctx context.Context, d Daemon) (Status, error) {
	var s Status
	path := "/v1/daemons/" + url.PathEscape(d.Name)
	if deadline, ok := ctx.Deadline(); ok {
		const answerTime = 500 * time.Millisecond // for an answer to arrive, at the most
		path += "?wait=" + url.QueryEscape(max(time.Until(deadline)-answerTime, 0).String())
	}
	err := c.call(ctx, http.MethodPut, path, d, &s)
	return s, err
}

// Stop ends a daemon and removes its directory. None there is a success.
func (c *Client) Stop(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/daemons/"+url.PathEscape(name), nil, nil)
}

// List says how all daemons are. With the version of an earlier answer it returns when something changed since, or after
// half a minute.
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
