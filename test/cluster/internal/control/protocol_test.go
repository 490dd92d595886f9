// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// deep returns a directory whose path is longer than a socket address.
func deep(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCall_RequestWithFiles_Received(t *testing.T) {
	dir := deep(t)
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// Longer than one read of the receiver.
	want := Request{Verb: "exec", Args: []string{"a", strings.Repeat("x", 200_000)}, Dir: "/", Env: []string{"A=b"}}
	got := make(chan Request, 1)
	go func() {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer conn.Close()
		request, files, err := Receive(conn)
		if err != nil || len(files) != 1 {
			json.NewEncoder(conn).Encode(Response{Error: "not received"})
			return
		}
		files[0].WriteString("through the file")
		files[0].Close()
		got <- request
		json.NewEncoder(conn).Encode(Response{ExitCode: 3})
	}()
	response, err := Call(dir, want, w)
	w.Close()
	if err != nil || response.ExitCode != 3 {
		t.Fatalf("got %+v, %v", response, err)
	}
	if diff := cmp.Diff(want, <-got); diff != "" {
		t.Errorf("request (-want +got)\n%s", diff)
	}
	b := make([]byte, 64)
	if n, err := r.Read(b); err != nil || string(b[:n]) != "through the file" {
		t.Errorf("the file carried %q, %v", b[:n], err)
	}
}

func TestCall_NodeFails_ReturnsItsError(t *testing.T) {
	dir := deep(t)
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, _, err := Receive(conn); err == nil {
			json.NewEncoder(conn).Encode(Response{Error: "no component \"x\""})
		}
	}()
	if _, err := Call(dir, Request{Verb: "stop", Component: "x"}); err == nil || err.Error() != `no component "x"` {
		t.Errorf("got %v", err)
	}
}

func TestCall_NoNode_ErrorNamesDirectory(t *testing.T) {
	dir := deep(t)
	if _, err := Call(dir, Request{Verb: "status"}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
}
