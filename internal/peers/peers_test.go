// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
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

// TestListen_ManyConnections_PeerWithTheMostPays opens connections from addresses of the loopback network.
func TestListen_ManyConnections_PeerWithTheMostPays(t *testing.T) {
	l, err := Listen("127.0.0.1:0", limits)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	wg.Go(func() { _ = s.Serve(l) })
	defer wg.Wait()
	defer s.Close()
	dial := func(from string) net.Conn {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	answered := func(c net.Conn) bool {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		return err == nil && r.Body.Close() == nil
	}
	small, kept := dial("127.0.0.2"), dial("127.0.0.3")
	if !answered(small) || !answered(kept) {
		t.Fatal("no answer")
	}
	var greedy []net.Conn
	for range 3 * limits.Connections {
		greedy = append(greedy, dial("127.0.0.3"))
	}
	if !answered(greedy[len(greedy)-1]) {
		t.Error("the newest connection is gone")
	}
	if !answered(small) {
		t.Error("the connection of another peer is gone")
	}
	gone := 0
	for _, c := range append(greedy, kept) {
		if !answered(c) {
			gone++
		}
	}
	if want := 2*limits.Connections + 2; gone != want {
		t.Errorf("%d connections ended, want %d", gone, want)
	}
}
