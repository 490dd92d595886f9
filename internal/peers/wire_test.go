// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bytes"
	"context"
	"io"
	"net"
	"time"
)

// wires is a network without sockets, whose time limits are of a bubble's clock. As a socket does, a connection keeps what is
// written until the other end reads it.
type wires struct {
	accept chan net.Conn
	closed context.Context
	close  context.CancelFunc
	port   int
}

func newWires() *wires {
	w := &wires{accept: make(chan net.Conn)}
	w.closed, w.close = context.WithCancel(context.Background())
	return w
}

func (w *wires) Accept() (net.Conn, error) {
	select {
	case c := <-w.accept:
		return c, nil
	case <-w.closed.Done():
		return nil, net.ErrClosed
	}
}

func (w *wires) Close() error { w.close(); return nil }

func (w *wires) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// dial connects from an address.
func (w *wires) dial(from string) net.Conn {
	w.port++
	address := &net.TCPAddr{IP: net.ParseIP(from), Port: 1000 + w.port}
	client, server := net.Pipe()
	w.accept <- newWire(server, w.Addr(), address)
	return newWire(client, address, w.Addr())
}

type wire struct {
	net.Conn
	local, remote net.Addr
	written       chan []byte
	closed        context.Context
	close         context.CancelFunc
}

func newWire(pipe net.Conn, local, remote net.Addr) *wire {
	w := &wire{Conn: pipe, local: local, remote: remote, written: make(chan []byte, 1000)}
	w.closed, w.close = context.WithCancel(context.Background())
	go w.send()
	return w
}

// send writes until the wire is closed, and then what is left, as a socket does.
func (w *wire) send() {
	defer w.Conn.Close()
	for {
		select {
		case data := <-w.written:
			_, _ = w.Conn.Write(data) // The other end may be closed.
		case <-w.closed.Done():
			for len(w.written) > 0 {
				_, _ = w.Conn.Write(<-w.written)
			}
			return
		}
	}
}

func (w *wire) Write(data []byte) (int, error) {
	if w.closed.Err() != nil {
		return 0, io.ErrClosedPipe
	}
	w.written <- bytes.Clone(data)
	return len(data), nil
}

func (w *wire) Close() error {
	w.close()
	return w.Conn.SetReadDeadline(time.Unix(0, 1))
}

// SetWriteDeadline does nothing, because no write waits.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

func (w *wire) SetDeadline(at time.Time) error { return w.SetReadDeadline(at) }

func (w *wire) LocalAddr() net.Addr { return w.local }

func (w *wire) RemoteAddr() net.Addr { return w.remote }
