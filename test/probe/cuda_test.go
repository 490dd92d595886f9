// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/boxtest"
	"gpu-dra-driver/sim/mps"
	"gpu-dra-driver/sim/simtest"
)

// asProbe makes the test's binary the probe, which starts itself again for other processes.
const asProbe = "PROBE_TEST_AS_PROBE"

func TestMain(m *testing.M) {
	if os.Getenv(asProbe) != "" {
		main()
		return
	}
	boxtest.Main(m)
}

func TestCUDA_SeveralProcesses_EndWithTheFirst(t *testing.T) {
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "")
	t.Setenv(asProbe, "1")
	var out bytes.Buffer
	if err := run(t.Context(), []string{"cuda", "--processes", "3"}, t.TempDir(), &out); err != nil {
		t.Fatal(err)
	}
	var v cudaView
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]cuda{{}, {}}, v.Processes); diff != "" {
		t.Error(diff)
	}
	if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("processes are left: %v", err)
	}
}

func TestCUDA_MalformedAmounts_Refused(t *testing.T) {
	for _, bad := range []string{"10Gx", "1Gi,", "0", "-1Gi", ","} {
		if err := run(t.Context(), []string{"cuda", "--alloc", bad}, t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), "--alloc") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestCUDA_ServerLost_ReconnectsWithItsLimits(t *testing.T) {
	root := t.TempDir()
	simtest.MachineIn(t, root, "hgx-h100")
	for _, dir := range []string{"p", "dev/shm"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "dev/nvidia0"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	environ := []string{"CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(root, "p"), "CUDA_MPS_LOG_DIRECTORY=" + t.TempDir(), "GPUSIM_SHM=" + filepath.Join(root, "dev/shm")}
	say := func(commands string) (string, int) {
		var out bytes.Buffer
		code := mps.Run(nil, environ, root, strings.NewReader(commands), &out, io.Discard)
		return out.String(), code
	}
	daemon := make(chan int, 1)
	go func() { daemon <- mps.Run([]string{"-f"}, environ, root, nil, io.Discard, io.Discard) }()
	// While the daemon starts, its socket for commands of root can be missing, and the other one refuses the command.
	for limit := ""; limit != "10G\n"; {
		select {
		case code := <-daemon:
			t.Fatalf("the daemon ended with %d", code)
		default:
			limit, _ = say("set_default_device_pinned_mem_limit 0 10G\nget_default_device_pinned_mem_limit 0\n")
		}
	}
	t.Cleanup(func() {
		say("quit\n")
		if code := <-daemon; code != 0 {
			t.Errorf("the daemon ended with %d", code)
		}
	})

	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/p")
	t.Setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25")
	ctx, stop := context.WithCancel(t.Context())
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"cuda", "--alloc", "10Gi,1Gi", "--hold"}, root, write) }()
	lines := json.NewDecoder(read)
	next := func() cuda {
		t.Helper()
		var v cudaView
		if err := lines.Decode(&v); err != nil {
			t.Fatal(err)
		}
		return v.CUDA
	}
	want := cuda{
		MPS: true, LimitBytes: 10 << 30, Threads: 25, Device: "0",
		Allocs: []alloc{{Bytes: 10 << 30, OK: true}, {Bytes: 1 << 30, Error: "out of memory"}},
	}
	if diff := cmp.Diff(want, next()); diff != "" {
		t.Error(diff)
	}
	pid, _ := say("get_server_list\n")
	say("shutdown_server " + strings.TrimSpace(pid) + " -f\n")
	if lost := next(); !lost.MPS || lost.Lost == "" {
		t.Errorf("%+v", lost)
	}
	want.Reconnected = true
	if diff := cmp.Diff(want, next()); diff != "" {
		t.Error(diff)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
