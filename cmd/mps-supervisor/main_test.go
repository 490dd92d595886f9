// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/internal/mpsd"
)

func TestRun_InvalidCommandLine_ExitsWith2(t *testing.T) {
	for _, args := range [][]string{{"--odd"}, {"word"}, {"--mps-dir=relative"}, {"--mps-shm-size=64M"}, {"--mps-shm-size=0%"}, {"--mps-shm-size=100%"}, {"--mps-shm-size=1Ki"}, {"--mps-shm-size=-1Mi"}} {
		var out, errOut bytes.Buffer
		if code := run(t.Context(), args, nil, &out, &errOut); code != 2 || errOut.Len() == 0 {
			t.Errorf("%v: %d, %s", args, code, &errOut)
		}
	}
	for _, args := range [][]string{{"--help"}, {"--version"}} {
		var out, errOut bytes.Buffer
		if code := run(t.Context(), args, nil, &out, &errOut); code != 0 {
			t.Errorf("%v: %d", args, code)
		}
	}
	var out, errOut bytes.Buffer
	if code := run(t.Context(), []string{"enter", "{"}, nil, &out, &errOut); code != 1 || !strings.Contains(errOut.String(), "read what to enter") {
		t.Errorf("%d, %s", code, &errOut)
	}
}

func TestRun_ContextEnds_ExitsWith0(t *testing.T) {
	dir := t.TempDir()
	boot := filepath.Join(dir, "boot")
	if err := os.WriteFile(boot, []byte("boot-1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	environ := []string{"MPS_DIR=" + filepath.Join(dir, "mps"), "DRIVER_ROOT=" + dir, "BOOT_ID_FILE=" + boot, "DEV_ROOT=", "MPS_SHM_SIZE="}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	var out, errOut bytes.Buffer
	go func() { ended <- run(ctx, nil, environ, &out, &errOut) }()
	socket := filepath.Join(dir, "mps", mpsd.SocketName)
	for {
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close()
			break
		}
		select {
		case code := <-ended:
			t.Fatalf("it ended with %d: %s", code, &errOut)
		case <-time.After(time.Millisecond):
		}
	}
	checked := func() int {
		var out, errOut bytes.Buffer
		return run(t.Context(), []string{"check"}, environ, &out, &errOut)
	}
	if code := checked(); code != 0 {
		t.Errorf("it answers, and the check says %d", code)
	}
	list, err := mpsd.NewClient(socket).List(t.Context(), "")
	if err != nil || len(list.Daemons) != 0 || list.Version == "" {
		t.Errorf("%+v, %v", list, err)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("it ended with %d: %s", code, &errOut)
	}
	if code := checked(); code != 1 {
		t.Errorf("without a supervisor, the check returns %d", code)
	}
}
