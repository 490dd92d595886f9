// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var limits = Limits{Connections: 8, Turns: 2, Body: 100, Bodies: 250, Time: time.Minute}

// held is a handler whose requests last until the test ends them.
type held struct {
	began chan string
	end   chan struct{}
}

func newHeld() *held { return &held{make(chan string, 100), make(chan struct{})} }

func (h *held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.began <- r.RemoteAddr
	<-h.end
	fmt.Fprint(w, "done")
}

// send serves a request of a peer in the background. The function returns its answer.
func send(ctx context.Context, s *http.Server, peer string, body io.Reader) (answer func() (int, string)) {
	out, ended := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(ended)
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", body)
		r.RemoteAddr = peer + ":1234"
		s.Handler.ServeHTTP(out, r)
	}()
	return func() (int, string) {
		<-ended
		return out.Code, out.Body.String()
	}
}

// waiting returns when so many requests wait for their turns.
func waiting(t *testing.T, s *http.Server, n int) {
	t.Helper()
	g := s.Handler.(*gate)
	for t.Context().Err() == nil {
		g.mu.Lock()
		now := 0
		for q := range g.requests {
			if q.waiting {
				now++
			}
		}
		g.mu.Unlock()
		if now == n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestServer_OnePeerHasManyRequests_OtherPeersTurnComesNext(t *testing.T) {
	h := newHeld()
	s := NewServer(h, limits)
	var greedy []func() (int, string)
	for range 20 {
		greedy = append(greedy, send(t.Context(), s, "10.0.0.1", strings.NewReader("x")))
	}
	<-h.began
	<-h.began
	waiting(t, s, 18)
	other := send(t.Context(), s, "10.0.0.2", strings.NewReader("x"))
	waiting(t, s, 19)
	h.end <- struct{}{}
	if next := <-h.began; next != "10.0.0.2:1234" {
		t.Errorf("the next turn is of %s", next)
	}
	if len(h.began) > 0 {
		t.Errorf("%d more turns than %d", len(h.began), limits.Turns)
	}
	close(h.end)
	if code, text := other(); code != http.StatusOK || text != "done" {
		t.Errorf("%d %q", code, text)
	}
	for _, answer := range greedy {
		if code, _ := answer(); code != http.StatusOK {
			t.Errorf("answer %d", code)
		}
	}
	g := s.Handler.(*gate)
	if g.turns != 0 || g.bytes != 0 || len(g.running)+len(g.requests) != 0 {
		t.Errorf("after all requests: %d turns, %d bytes, %v, %v", g.turns, g.bytes, g.running, g.requests)
	}
}

func TestServer_NoTurnInTime_AnswersThatItIsBusy(t *testing.T) {
	h := newHeld()
	l := limits
	l.Time = 50 * time.Millisecond
	s := NewServer(h, l)
	var all []func() (int, string)
	for range l.Turns {
		all = append(all, send(t.Context(), s, "10.0.0.1", strings.NewReader("x")))
		<-h.began
	}
	if code, text := send(t.Context(), s, "10.0.0.2", strings.NewReader("x"))(); code != http.StatusServiceUnavailable || !strings.Contains(text, ErrBusy.Error()) {
		t.Errorf("%d %q", code, text)
	}
	close(h.end)
	for _, answer := range all {
		if code, _ := answer(); code != http.StatusOK {
			t.Errorf("answer %d", code)
		}
	}
}

func TestServer_HandlerPanics_TurnIsFreeAgain(t *testing.T) {
	s := NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a bug") }), limits)
	for range limits.Turns + 1 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			s.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		}()
	}
}

// TestServer_BodiesOfOnePeerTakeTheMemory_OtherPeersBodyIsRead has two bodies that stop before their ends.
func TestServer_BodiesOfOnePeerTakeTheMemory_OtherPeersBodyIsRead(t *testing.T) {
	h := newHeld()
	close(h.end)
	const step = 32 << 10
	l := Limits{Turns: 9, Body: 9 * step, Bodies: 4 * step, Time: time.Minute}
	s := NewServer(h, l)
	g := s.Handler.(*gate)
	stopped := map[int]func() (int, string){}
	ends := map[int]*io.PipeWriter{}
	for _, steps := range []int{2, 1} {
		body, w := io.Pipe()
		stopped[steps], ends[steps] = send(t.Context(), s, "10.0.0.1", body), w
		if _, err := io.WriteString(w, strings.Repeat("x", steps*step)); err != nil {
			t.Fatal(err)
		}
		for wanted := int64(steps * step); t.Context().Err() == nil; {
			g.mu.Lock()
			held := g.bytes
			g.mu.Unlock()
			if steps == 1 {
				held -= 2 * step
			}
			if held == wanted {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	if code, text := send(t.Context(), s, "10.0.0.2", strings.NewReader(strings.Repeat("x", 2*step)))(); code != http.StatusOK {
		t.Errorf("the body of another peer: %d %q", code, text)
	}
	for steps, want := range map[int]int{2: http.StatusServiceUnavailable, 1: http.StatusOK} {
		_ = ends[steps].Close()
		if code, text := stopped[steps](); code != want {
			t.Errorf("the body of %d steps: %d %q", steps, code, text)
		}
	}
	if g.bytes != 0 {
		t.Errorf("%d bytes after all requests", g.bytes)
	}
}

func TestServer_LargeBodyOrAnswer_Refused(t *testing.T) {
	s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 300)) }), limits)
	for body, want := range map[string]int{strings.Repeat("x", 101): http.StatusRequestEntityTooLarge, "": http.StatusServiceUnavailable} {
		if code, _ := send(t.Context(), s, "10.0.0.1", strings.NewReader(body))(); code != want {
			t.Errorf("%d bytes: answer %d", len(body), code)
		}
	}
}

// serve serves a handler, in TLS or without. The function dials from an address of the loopback network.
func serve(t *testing.T, h http.Handler, l Limits, secure bool) (_ *listener, dial func(from string) net.Conn) {
	t.Helper()
	open, err := Listen("127.0.0.1:0", l)
	if err != nil {
		t.Fatal(err)
	}
	return open.(*listener), serveAt(t, open, h, l, secure, func(from string) net.Conn {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp", open.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	})
}

// serveInBubble does the same without sockets, so that time limits pass at once.
func serveInBubble(t *testing.T, h http.Handler, l Limits, secure bool) (_ *listener, plain, dial func(from string) net.Conn) {
	t.Helper()
	w := newWires()
	open := &listener{Listener: w, Limits: l, open: map[*connection]struct{}{}}
	return open, w.dial, serveAt(t, open, h, l, secure, w.dial)
}

func serveAt(t *testing.T, open net.Listener, h http.Handler, l Limits, secure bool, plain func(from string) net.Conn) (dial func(from string) net.Conn) {
	t.Helper()
	s := &httptest.Server{Listener: open, Config: NewServer(h, l)}
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return func(from string) net.Conn {
		t.Helper()
		c := plain(from)
		t.Cleanup(func() { _ = c.Close() })
		if !secure {
			return c
		}
		over := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
		if err := over.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return over
	}
}

func post(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

// read reads an answer.
func read(c net.Conn) error {
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return nil
}

func answered(c net.Conn) error {
	if _, err := io.WriteString(c, post("/", "x")); err != nil {
		return err
	}
	return read(c)
}

// become returns when the connection has the state.
func become(t *testing.T, l *listener, c net.Conn, state int32) {
	t.Helper()
	for t.Context().Err() == nil {
		l.mu.Lock()
		for o := range l.open {
			if o.RemoteAddr().String() == c.LocalAddr().String() && o.state.Load() == state && o.ready.Load() {
				l.mu.Unlock()
				return
			}
		}
		l.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
}

// both runs a test without TLS and with it.
func both(t *testing.T, test func(t *testing.T, secure bool)) {
	t.Helper()
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %t", secure), func(t *testing.T) {
			t.Parallel()
			test(t, secure)
		})
	}
}

// bubble runs a test with a clock of its own.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	})
}

// TestListen_ManyConnections_PeerWithTheMostPays opens connections from addresses of the loopback network.
func TestListen_ManyConnections_PeerWithTheMostPays(t *testing.T) {
	l, dial := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), limits, false)
	small, kept := dial("127.0.0.2"), dial("127.0.0.3")
	for _, c := range []net.Conn{small, kept} {
		if err := answered(c); err != nil {
			t.Fatal(err)
		}
		become(t, l, c, idle)
	}
	var greedy []net.Conn
	for range 3 * limits.Connections {
		greedy = append(greedy, dial("127.0.0.3"))
	}
	if err := answered(greedy[len(greedy)-1]); err != nil {
		t.Errorf("the newest connection: %v", err)
	}
	if err := answered(small); err != nil {
		t.Errorf("the connection of another peer: %v", err)
	}
	gone := 0
	for _, c := range append(greedy, kept) {
		if answered(c) != nil {
			gone++
		}
	}
	if want := 2*limits.Connections + 2; gone != want {
		t.Errorf("%d connections ended, want %d", gone, want)
	}
}

// TestListen_RequestRuns_IdleConnectionsOfItsPeerEnd has one request, which is older than the idle connections.
func TestListen_RequestRuns_IdleConnectionsOfItsPeerEnd(t *testing.T) {
	both(t, func(t *testing.T, secure bool) {
		h, few := newHeld(), limits
		few.Connections = 4
		mux := http.NewServeMux()
		mux.Handle("/held", h)
		mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
		l, dial := serve(t, mux, few, secure)
		review := dial("127.0.0.3")
		if _, err := io.WriteString(review, post("/held", "x")); err != nil {
			t.Fatal(err)
		}
		<-h.began
		free := []net.Conn{dial("127.0.0.3"), dial("127.0.0.3")}
		for _, c := range free {
			if err := answered(c); err != nil {
				t.Fatal(err)
			}
			become(t, l, c, idle)
		}
		for _, from := range []string{"127.0.0.4", "127.0.0.5"} {
			if err := answered(dial(from)); err != nil {
				t.Errorf("a request from %s: %v", from, err)
			}
		}
		close(h.end)
		if err := read(review); err != nil {
			t.Errorf("the request that ran: %v", err)
		}
		if answered(free[1]) == nil {
			t.Error("the second of the idle connections is open")
		}
		if err := answered(free[0]); err != nil {
			t.Errorf("the oldest idle connection: %v", err)
		}
	})
}

func TestListen_AtTheLimit_ConnectionThatEnds(t *testing.T) {
	type peers map[string][]int32
	for name, c := range map[string]struct {
		open peers // in the order of their last answers
		peer string
		want string // The new one is the last of its peer.
	}{
		"idle before arriving":                                 {peers{"a": {idle, arriving, idle, arriving}, "b": {idle}}, "b", "a 2"},
		"arriving before the oldest idle one":                  {peers{"a": {idle, queued, arriving}, "b": {idle}}, "b", "a 2"},
		"the oldest idle one before those that wait":           {peers{"a": {queued, idle, running}, "b": {idle}}, "b", "a 1"},
		"the fresh one is older than the idle one":             {peers{"a": {queued, fresh, idle}}, "a", "a 1"},
		"the idle one is older than the fresh one":             {peers{"a": {queued, idle, idle, fresh}}, "a", "a 2"},
		"of the peer with the most, though another's is older": {peers{"a": {running, running, idle, idle}, "b": {idle, idle}}, "c", "a 3"},
		"arriving before those that run":                       {peers{"a": {running, queued, arriving, arriving}, "b": {idle}}, "b", "a 2"},
		"no other than the new one":                            {peers{"a": {running, queued, queued}, "b": {idle, idle}}, "a", "a 3"},
		"requests of the peer with the most keep theirs":       {peers{"a": {queued, queued, running}, "b": {idle}}, "c", "b 0"},
		"all wait, and another peer comes":                     {peers{"a": {running, queued, queued}, "b": {queued}}, "c", "a 1"},
		"all wait, and the peer with the most comes":           {peers{"a": {running, queued, queued}, "b": {queued}}, "a", "a 3"},
		"all wait, and a peer with as many comes":              {peers{"a": {queued}, "b": {queued}}, "c", "c 0"},
		"all run": {peers{"a": {running, running}, "b": {running}}, "c", "c 0"},
	} {
		t.Run(name, func(t *testing.T) {
			l, names := &listener{open: map[*connection]struct{}{}}, map[*connection]string{}
			add := func(peer string, at int, state int32) *connection {
				o := &connection{listener: l, peer: peer, accepted: time.Unix(int64(at), 0)}
				o.state.Store(state)
				o.answered.Store(int64(at))
				names[o] = fmt.Sprint(peer, " ", at)
				return o
			}
			for peer, states := range c.open {
				for at, state := range states {
					l.open[add(peer, at, state)] = struct{}{}
				}
			}
			l.Connections = len(l.open)
			if ended := names[l.add(add(c.peer, len(c.open[c.peer]), fresh))]; ended != c.want {
				t.Errorf("the connection %s ended, want %s", ended, c.want)
			}
			if len(l.open) != l.Connections {
				t.Errorf("%d connections are open", len(l.open))
			}
		})
	}
}

// TestListen_Handshakes_OldestEndsAndKeptConnectionStays has connections in the order of their last answers.
func TestListen_Handshakes_OldestEndsAndKeptConnectionStays(t *testing.T) {
	for name, c := range map[string]struct {
		others []int32 // Handshakes are fresh, or arriving once bytes have come.
		want   []int   // The first one is kept: at 0.
	}{
		"handshakes that hang": {[]int32{fresh, arriving}, []int{1, 2}},
		"idle connections":     {[]int32{idle, arriving, idle}, []int{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			l := &listener{open: map[*connection]struct{}{}}
			open := func(at int, state int32) *connection {
				c := &connection{listener: l, peer: "a", secure: new(tls.Conn), accepted: time.Unix(int64(at), 0)}
				c.state.Store(state)
				c.answered.Store(int64(at))
				c.ready.Store(state == idle)
				return c
			}
			for at, state := range append([]int32{idle}, c.others...) {
				l.open[open(at, state)] = struct{}{}
			}
			l.Connections = len(l.open)
			for n, want := range c.want {
				if at := l.add(open(l.Connections+n, fresh)).answered.Load(); at != int64(want) {
					t.Errorf("the connection %d ended, want %d", at, want)
				}
			}
		})
	}
}

// TestServer_StepsOfRequests_StatesOfConnections has one turn, and two requests on each of two connections.
func TestServer_StepsOfRequests_StatesOfConnections(t *testing.T) {
	both(t, func(t *testing.T, secure bool) {
		h, one := newHeld(), limits
		one.Turns = 1
		l, dial := serve(t, h, one, secure)
		first, second := dial("127.0.0.1"), dial("127.0.0.2")
		write := func(c net.Conn, text string, state int32) {
			t.Helper()
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
			become(t, l, c, state)
		}
		for _, before := range []int32{fresh, idle} {
			become(t, l, first, before)
			become(t, l, second, before)
			text := post("/", "body")
			write(first, text[:9], arriving)
			write(first, text[9:len(text)-2], arriving)
			write(first, text[len(text)-2:], running)
			<-h.began
			write(second, text, queued)
			h.end <- struct{}{}
			if err := read(first); err != nil {
				t.Fatal(err)
			}
			<-h.began
			become(t, l, second, running)
			h.end <- struct{}{}
			if err := read(second); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestServer_FreshConnection_AnswersItsLateRequest sends a body that is larger than the server's buffer of a connection.
func TestServer_FreshConnection_AnswersItsLateRequest(t *testing.T) {
	both(t, func(t *testing.T, secure bool) {
		synctest.Test(t, func(t *testing.T) {
			late := Limits{Connections: 1, Turns: 1, Body: 1 << 20, Bodies: 1 << 20, Time: 3 * time.Second}
			_, _, dial := serveInBubble(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), late, secure)
			c := dial("127.0.0.1")
			_ = c.SetReadDeadline(time.Now().Add(late.Time + time.Second))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("the connection ended: %v", err)
			}
			_ = c.SetReadDeadline(time.Time{})
			if _, err := io.WriteString(c, post("/", strings.Repeat("x", 1<<19))); err != nil {
				t.Fatal(err)
			}
			if err := read(c); err != nil {
				t.Error(err)
			}
		})
	})
}

// kept is a client's connection that keeps all but its first write until release.
type kept struct {
	net.Conn
	began bool
	bytes []byte
}

func (k *kept) Write(data []byte) (int, error) {
	if k.began {
		k.bytes = append(k.bytes, data...)
		return len(data), nil
	}
	k.began = true
	return k.Conn.Write(data)
}

func (k *kept) release() error {
	_, err := k.Conn.Write(k.bytes)
	return err
}

// shakeHands begins a handshake. Its end is kept, with a text after it.
func shakeHands(t *testing.T, c net.Conn, text string) (*kept, *tls.Conn) {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	k := &kept{Conn: c}
	over := tls.Client(k, &tls.Config{InsecureSkipVerify: true})
	if _, err := io.WriteString(over, text); err != nil {
		t.Fatal(err)
	}
	return k, over
}

// TestServer_ClientIsSlow_AnsweredAsLongAsItWaits has clients on a loaded machine, which pause within a step of a request.
func TestServer_ClientIsSlow_AnsweredAsLongAsItWaits(t *testing.T) {
	slow := limits
	slow.Time = 8 * time.Second
	serve := func(t *testing.T) (plain, dial func(from string) net.Conn) {
		_, plain, dial = serveInBubble(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), slow, true)
		return plain, dial
	}
	// pause takes most of the time of a request. The server must not end the connection.
	pause := func(t *testing.T, c net.Conn) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(slow.Time - 3*time.Second))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("the server ended the connection: %v", err)
		}
		_ = c.SetReadDeadline(time.Time{})
	}
	text := post("/", "body")
	for step, sent := range map[string]int{"header": 9, "body": len(text) - 2} {
		bubble(t, step, func(t *testing.T) {
			_, dial := serve(t)
			c := dial("127.0.0.1")
			if _, err := io.WriteString(c, text[:sent]); err != nil {
				t.Fatal(err)
			}
			pause(t, c)
			if _, err := io.WriteString(c, text[sent:]); err != nil {
				t.Fatal(err)
			}
			if err := read(c); err != nil {
				t.Error(err)
			}
		})
	}
	bubble(t, "handshake", func(t *testing.T) {
		plain, _ := serve(t)
		k, over := shakeHands(t, plain("127.0.0.1"), text)
		pause(t, k.Conn)
		if err := k.release(); err != nil {
			t.Fatal(err)
		}
		if err := read(over); err != nil {
			t.Error(err)
		}
	})
}

// TestServer_HalfHeader_ConnectionEndsLongBeforeAnIdleOne also has a client that does not begin its handshake.
func TestServer_HalfHeader_ConnectionEndsLongBeforeAnIdleOne(t *testing.T) {
	ends := func(t *testing.T, c net.Conn, sent string) {
		t.Helper()
		if _, err := io.WriteString(c, sent); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(forIdle / 6))
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Errorf("the connection does not end: %v", err)
		}
	}
	both(t, func(t *testing.T, secure bool) {
		quick := limits
		quick.Time = 2 * time.Second
		serve := func(t *testing.T) (l *listener, plain, dial func(from string) net.Conn) {
			return serveInBubble(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), quick, secure)
		}
		bubble(t, "of the first request", func(t *testing.T) {
			_, _, dial := serve(t)
			ends(t, dial("127.0.0.1"), "G")
		})
		bubble(t, "of the second request", func(t *testing.T) {
			l, _, dial := serve(t)
			c := dial("127.0.0.1")
			if err := answered(c); err != nil {
				t.Fatal(err)
			}
			become(t, l, c, idle)
			ends(t, c, "G")
		})
		bubble(t, "sent with the first request", func(t *testing.T) {
			_, _, dial := serve(t)
			c := dial("127.0.0.1")
			if _, err := io.WriteString(c, post("/", "x")+"POST / HTTP/1.1\r\n"); err != nil {
				t.Fatal(err)
			}
			if err := read(c); err != nil {
				t.Fatal(err)
			}
			ends(t, c, "")
		})
		if secure {
			bubble(t, "sent with the end of the handshake", func(t *testing.T) {
				_, plain, _ := serve(t)
				k, over := shakeHands(t, plain("127.0.0.1"), "G")
				if err := k.release(); err != nil {
					t.Fatal(err)
				}
				ends(t, over, "")
			})
			bubble(t, "no handshake", func(t *testing.T) {
				_, plain, _ := serve(t)
				c := plain("127.0.0.1")
				defer c.Close()
				ends(t, c, "")
			})
		}
	})
}
