// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package peers bounds HTTP servers that any pod of the cluster reaches. They share connections, memory and turns
// between their peers, which are IP addresses, so that a peer that takes much gets less, and the others are answered.
//
// Trap: a NAT makes many pods one peer. So a peer keeps its oldest idle connection. Of its other idle ones the one that
// was answered last stays longest, and a request that waits or runs keeps its connection.
package peers

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Limits bounds a server.
type Limits struct {
	// Connections is the number of open connections.
	Connections int
	// Turns is the number of requests that the handler has at once; others wait.
	Turns int
	// Body limits the body of a request, and Bodies those of all requests together, with the answers that
	// clients have not read yet.
	Body, Bodies int64
	// Time limits a request: to arrive, to wait and to be answered. Clients should wait no longer.
	Time time.Duration
}

// forHeader is the time for a TLS handshake, and for the header of a request that has begun. A client on a loaded
// machine needs seconds for each, and asks in vain if the server waits less than the client does.
func (l Limits) forHeader() time.Duration { return min(l.Time, 10*time.Second) }

// forIdle is the time for which a connection without a request stays, also before its first one. It is longer than the
// 90 s of Go's clients, because a request on a connection that the server closes fails.
const forIdle = 2 * time.Minute

// maxHeader is the size of a request's header, in bytes.
const maxHeader = 16 << 10

// NewServer returns a server of the handler within the limits. It serves connections of a listener by Listen, also in
// TLS.
func NewServer(h http.Handler, l Limits) *http.Server {
	return &http.Server{
		Handler:           &gate{Limits: l, handler: h, requests: map[*request]struct{}{}, running: map[string]int{}},
		ReadHeaderTimeout: l.forHeader(), WriteTimeout: 2 * l.Time, IdleTimeout: forIdle, MaxHeaderBytes: maxHeader,
		ConnContext: func(ctx context.Context, served net.Conn) context.Context {
			c := connectionOf(served)
			if c != nil {
				c.secure, _ = served.(*tls.Conn)
			}
			return context.WithValue(ctx, key{}, c)
		},
		ConnState: func(served net.Conn, state http.ConnState) {
			if state == http.StateIdle {
				connectionOf(served).is(idle)
			}
		},
	}
}

// Listen listens at a TCP address. At the limit of connections, a new one ends one of the peer that has the most.
func Listen(address string, l Limits) (net.Listener, error) {
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return &listener{Listener: tcp, Limits: l, open: map[*connection]struct{}{}}, nil
}

type listener struct {
	net.Listener
	Limits

	mu   sync.Mutex
	open map[*connection]struct{}
}

// The states of a connection, by their order at the limit: fresh and idle ones end first, and running ones never.
const (
	// fresh means that nothing of its first request has arrived.
	fresh int32 = iota
	idle
	arriving
	// oldestIdle is the place of the oldest idle connection of a peer. Its client has used it before others came, and a
	// request fails if its connection ends at that moment.
	oldestIdle
	// queued means that the request waits, or that its answer is written.
	queued
	running
)

type connection struct {
	net.Conn
	// buffer keeps bytes that arrived with the end of a handshake.
	buffer   *bufio.Reader
	listener *listener
	peer     string
	accepted time.Time
	state    atomic.Int32
	// answered is when it was accepted or last written to, in nanoseconds.
	answered atomic.Int64
	// secure is nil without TLS. ready is set after its handshake.
	secure *tls.Conn
	ready  atomic.Bool
}

// key has the connection as its value in the context of a request.
type key struct{}

// connectionOf returns nil for the connection of another listener.
func connectionOf(served net.Conn) *connection {
	if secure, ok := served.(*tls.Conn); ok {
		served = secure.NetConn()
	}
	c, _ := served.(*connection)
	return c
}

func (c *connection) is(state int32) {
	if c != nil {
		c.state.Store(state)
	}
}

// Accept returns the next connection.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: accepted, buffer: bufio.NewReaderSize(accepted, 1<<10), listener: l,
		peer: peerOf(accepted.RemoteAddr().String()), accepted: time.Now()}
	c.answered.Store(c.accepted.UnixNano())
	if ended := l.add(c); ended != nil {
		_ = ended.Close() // Its peer may have closed it.
	}
	return c, nil
}

// add returns the connection that must end. It is one of the peer that has the most, and that of the new one only
// without another. A request that runs keeps its connection, and one that waits loses it only to a peer that has fewer.
func (l *listener) add(c *connection) (ended *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = struct{}{}
	if len(l.open) <= l.Connections {
		return nil
	}
	of, waiting := map[string]int{}, []*connection{}
	first := map[string]*connection{} // The oldest idle one of each peer.
	free := []*connection{c}
	for o := range l.open {
		of[o.peer]++
		state := o.state.Load()
		if oldest := first[o.peer]; state == idle && (oldest == nil || o.accepted.Before(oldest.accepted)) {
			first[o.peer] = o
		}
		switch {
		case o == c || state == running:
		case state == queued:
			waiting = append(waiting, o)
		default:
			free = append(free, o)
		}
	}
	rank := func(o *connection) int32 {
		switch {
		case o == c:
			return running // It ends after others of its peer.
		case !o.ready.Load() && o.secure != nil:
			return idle // Its handshake has not ended: the bytes that arrive belong to it.
		case o == first[o.peer]:
			return oldestIdle
		}
		return max(idle, o.state.Load())
	}
	order := func(a, b *connection) int {
		return cmp.Or(
			of[b.peer]-of[a.peer], cmp.Compare(rank(a), rank(b)),
			cmp.Compare(a.answered.Load(), b.answered.Load()),
		)
	}
	ended = slices.MinFunc(free, order)
	if ended == c && len(waiting) > 0 {
		if o := slices.MinFunc(waiting, order); of[o.peer] > of[c.peer] {
			ended = o
		}
	}
	delete(l.open, ended)
	return ended
}

// Read limits the time for a header as soon as its first byte has arrived. A handshake gets one byte at a time: package
// `tls` takes all that there is, and a header that has begun would not be seen.
func (c *connection) Read(data []byte) (int, error) {
	if !c.ready.Load() && len(data) > 1 {
		data = data[:1]
	}
	n, err := c.buffer.Read(data)
	if n > 0 && (c.state.CompareAndSwap(fresh, arriving) || c.state.CompareAndSwap(idle, arriving)) {
		_ = c.Conn.SetReadDeadline(time.Now().Add(c.listener.forHeader())) // The next read shows an error.
	}
	return n, err
}

// SetReadDeadline keeps a fresh connection as long as an idle one: the server would give it the time for a header.
func (c *connection) SetReadDeadline(at time.Time) error {
	if !c.ready.Load() && (c.secure == nil || c.secure.ConnectionState().HandshakeComplete) {
		c.state.Store(fresh) // The bytes until now were the handshake's.
		c.ready.Store(true)
	}
	if c.ready.Load() && c.state.Load() == fresh {
		at = time.Now().Add(forIdle)
	}
	return c.Conn.SetReadDeadline(at)
}

func (c *connection) Write(data []byte) (int, error) {
	n, err := c.Conn.Write(data)
	c.answered.Store(time.Now().UnixNano())
	return n, err
}

func (c *connection) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.open, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// peerOf returns the IP address of an address with a port.
func peerOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// gate reads a request before the handler has it, and writes the answer after the handler made it. So a slow client
// holds no turn.
type gate struct {
	Limits
	handler http.Handler

	mu       sync.Mutex
	requests map[*request]struct{}
	arrived  int
	// bytes is the sum of all requests.
	bytes int64
	// running is the number of turns of each peer, and turns that of all.
	running map[string]int
	turns   int
}

type request struct {
	peer    string
	number  int
	control *http.ResponseController
	// connection is nil in a test without a listener.
	connection *connection
	bytes      int64
	// turn is closed when the request's turn begins.
	turn             chan struct{}
	waiting, running bool
	// refused is closed when other requests need the memory.
	refused chan struct{}
}

// ErrBusy is the answer to a request that other requests leave no room for.
var ErrBusy = errors.New("the server is busy: too many requests, or too large ones, at once; try again")

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), g.Time)
	defer cancel()
	q := g.enter(r, w)
	defer g.leave(q)
	body, err := g.read(q, http.MaxBytesReader(w, r.Body, g.Body))
	if err == nil {
		q.connection.is(queued)
		err = g.wait(ctx, q)
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	case errors.Is(err, ErrBusy):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	case err != nil:
		http.Error(w, fmt.Sprintf("the request did not arrive: %v", err), http.StatusRequestTimeout)
		return
	}
	r = r.WithContext(ctx)
	r.Body = http.NoBody
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	a := answer{header: w.Header(), code: http.StatusOK}
	q.connection.is(running)
	g.handler.ServeHTTP(&a, r)
	q.connection.is(queued)
	if !g.end(q, int64(a.body.Len())) {
		http.Error(w, ErrBusy.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body.Bytes()) // The client may be gone.
}

func (g *gate) enter(r *http.Request, w http.ResponseWriter) *request {
	c, _ := r.Context().Value(key{}).(*connection)
	c.is(arriving)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.arrived++
	q := &request{
		peer: peerOf(r.RemoteAddr), number: g.arrived, control: http.NewResponseController(w), connection: c,
		turn: make(chan struct{}), refused: make(chan struct{}),
	}
	// The server counts its ReadTimeout from when a fresh connection was accepted.
	_ = q.control.SetReadDeadline(time.Now().Add(g.Time)) // A recorder of a test has none.
	g.requests[q] = struct{}{}
	return q
}

func (g *gate) leave(q *request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bytes -= q.bytes
	delete(g.requests, q)
	g.giveBack(q)
}

// giveBack ends the turn of a request.
func (g *gate) giveBack(q *request) {
	if !q.running {
		return
	}
	q.running = false
	g.turns--
	if g.running[q.peer]--; g.running[q.peer] == 0 {
		delete(g.running, q.peer)
	}
	g.next()
}

// read returns the body, of which no more is in memory than has arrived.
func (g *gate) read(q *request, from io.Reader) ([]byte, error) {
	const chunkBytes = 32 << 10
	var body bytes.Buffer
	for {
		n, err := io.CopyN(&body, from, chunkBytes)
		switch {
		case !g.hold(q, n):
			return nil, ErrBusy
		case errors.Is(err, io.EOF):
			return body.Bytes(), nil
		case err != nil:
			return nil, err
		}
	}
}

// hold adds bytes to a request. Without room for them, the largest request of the peer with the most bytes is refused.
// It returns false if that is this request, now or before.
func (g *gate) hold(q *request, n int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	q.bytes, g.bytes = q.bytes+n, g.bytes+n
	for g.bytes > g.Bodies {
		of := map[string]int64{}
		for r := range g.requests {
			of[r.peer] += r.bytes
		}
		var most *request
		for r := range g.requests {
			if r.bytes > 0 &&
				(most == nil || of[r.peer] > of[most.peer] || of[r.peer] == of[most.peer] && r.bytes > most.bytes) {
				most = r
			}
		}
		g.refuse(most)
	}
	return !q.isRefused()
}

// refuse ends reads and writes of a request. Its memory counts as free from now on.
func (g *gate) refuse(q *request) {
	g.bytes, q.bytes = g.bytes-q.bytes, 0
	if !q.isRefused() {
		close(q.refused)
	}
	now := time.Now()
	_, _ = q.control.SetReadDeadline(now), q.control.SetWriteDeadline(now)
}

func (q *request) isRefused() bool {
	select {
	case <-q.refused:
		return true
	default:
		return false
	}
}

// wait returns when the request's turn begins.
func (g *gate) wait(ctx context.Context, q *request) error {
	g.mu.Lock()
	q.waiting = true
	g.next()
	g.mu.Unlock()
	select {
	case <-q.turn:
		return nil
	case <-q.refused:
		return ErrBusy
	case <-ctx.Done():
		return ErrBusy
	}
}

// next gives free turns to the requests of the peers that have the fewest.
func (g *gate) next() {
	for g.turns < g.Turns {
		var first *request
		for q := range g.requests {
			if q.waiting && (first == nil || g.running[q.peer] < g.running[first.peer] ||
				g.running[q.peer] == g.running[first.peer] && q.number < first.number) {
				first = q
			}
		}
		if first == nil {
			return
		}
		first.waiting, first.running = false, true
		g.running[first.peer]++
		g.turns++
		close(first.turn)
	}
}

// end ends the turn, and reports whether there is room for the answer.
func (g *gate) end(q *request, answer int64) bool {
	g.mu.Lock()
	g.giveBack(q)
	g.mu.Unlock()
	return g.hold(q, answer)
}

// answer keeps an answer until it is written.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header                { return a.header }
func (a *answer) WriteHeader(code int)               { a.code = code }
func (a *answer) Write(data []byte) (n int, _ error) { return a.body.Write(data) }
