// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpu-dra-driver/internal/boxtest"
	"gpu-dra-driver/internal/driverprogram"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

// TestMain lets the test's binary run as a CUDA process of another user.
func TestMain(m *testing.M) {
	if root := os.Getenv("MPS_TEST_CLIENT"); root != "" {
		c, err := Connect(context.Background(), os.Environ(), root)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("connected")
		_ = c.Close()
		os.Exit(0)
	}
	boxtest.Main(m)
}

// env is a daemon in this process, for GPU 0 of a machine.
type env struct {
	t         *testing.T
	root      string
	variables map[string]string
	done      chan error
	logged    driverprogram.Output
}

func serve(t *testing.T, anyUser bool) *env {
	t.Helper()
	root := t.TempDir()
	simtest.MachineIn(t, root, "hgx-h100")
	s := &env{t: t, root: root, done: make(chan error, 1), variables: map[string]string{
		envPipe: filepath.Join(root, "tmp/nvidia-mps"), envLog: t.TempDir(), envDevices: "0", "GPUSIM_SHM": filepath.Join(root, "dev/shm"),
	}}
	for _, dir := range []string{"tmp/nvidia-mps", "dev/shm"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "dev/nvidia0"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	go func() { s.done <- run(s.variables, root, anyUser, &s.logged) }()
	for !serves(filepath.Join(s.variables[envPipe], ControlSocket)) {
		select {
		case err := <-s.done:
			t.Fatalf("it did not start: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	t.Cleanup(func() {
		s.control("quit")
		if err := <-s.done; err != nil {
			t.Error(err)
		}
		if g := s.gpu(); len(g.Processes) != 0 {
			t.Errorf("processes are left: %+v", g.Processes)
		}
	})
	return s
}

func (s *env) gpu() engine.GPU {
	s.t.Helper()
	state, err := engine.Open(s.root, nil).State()
	if err != nil {
		s.t.Fatal(err)
	}
	return state.GPUs[0]
}

// control runs the control program.
func (s *env) control(commands ...string) string {
	s.t.Helper()
	var out, errOut bytes.Buffer
	control(s.variables, strings.NewReader(strings.Join(commands, "\n")+"\n"), &out, &errOut)
	return out.String() + errOut.String()
}

func (s *env) client(environ ...string) (*Client, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	return Connect(ctx, append(environ, envPipe+"=/tmp/nvidia-mps"), s.root)
}

func TestClient_Limits_BoundMemoryAndThreads(t *testing.T) {
	s := serve(t, true)
	for name, c := range map[string]struct {
		commands []string
		environ  []string
		mib      uint64
		threads  int
	}{
		"none":            {nil, nil, 81559 - 454, 100},
		"the client's":    {nil, []string{envMemory + "=0=10240M", envThreads + "=30"}, 10240, 30},
		"another's":       {nil, []string{envMemory + "=1=10240M"}, 81559 - 454, 100},
		"in gibibytes":    {nil, []string{envMemory + "=0=10G"}, 10240, 100},
		"not to be read":  {nil, []string{envMemory + "=10G", envThreads + "=x"}, 81559 - 454, 100},
		"of the server":   {[]string{"set_device_pinned_mem_limit PID 0 5120M", "set_active_thread_percentage PID 40"}, nil, 5120, 40},
		"the tighter one": {[]string{"set_device_pinned_mem_limit PID 0 5120M"}, []string{envMemory + "=0=10240M"}, 5120, 100},
	} {
		s.control("start_server -uid 0")
		pid := strings.TrimSpace(s.control("get_server_list"))
		s.control("set_device_pinned_mem_limit "+pid+" 0 99999M", "set_active_thread_percentage "+pid+" 100")
		for _, command := range c.commands {
			if out := s.control(strings.ReplaceAll(command, "PID", pid)); strings.Contains(out, "nvalid") {
				t.Errorf("%s: %s", command, out)
			}
		}
		client, err := s.client(c.environ...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if client.LimitMiB != c.mib || client.Threads != c.threads {
			t.Errorf("%s: %+v", name, client.Info)
		}
		if err := client.Alloc(c.mib << 20); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := client.Alloc(1); err == nil {
			t.Errorf("%s: more than the limit was given", name)
		}
		if g := s.gpu(); g.UsedMiB() != c.mib {
			t.Errorf("%s: the GPU's processes hold %d MiB", name, g.UsedMiB())
		}
		if err := client.Load(100); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if g := s.gpu(); g.Processes[0].Load != c.threads {
			t.Errorf("%s: a load of 100 %% is one of %d %%, want the limit", name, g.Processes[0].Load)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		for len(s.gpu().Processes) > 0 { // Wait until the daemon has noticed.
			if t.Context().Err() != nil {
				t.Fatal("the process is left")
			}
		}
	}
}

func TestCommand_Each_Answers(t *testing.T) {
	s := serve(t, false)
	for command, want := range map[string]string{
		"get_default_active_thread_percentage":       "100.0",
		"set_default_active_thread_percentage 101":   "100.0",
		"set_default_device_pinned_mem_limit 0 lots": "",
		"get_default_device_pinned_mem_limit 0":      "\n",
		"get_server_status 1":                        "Server 1 not found",
		"get_server_status":                          "A server PID is required",
		"get_client_list 1":                          "Server 1 not found",
		"dance":                                      `Unknown command "dance"`,
		"ps":                                         "PID",
	} {
		if out := s.control(command); !strings.Contains(out, want) {
			t.Errorf("%s: %q, want %q in it", command, out, want)
		}
	}
	for limit, want := range map[string]string{"2048M": "2G\n", "2047M": "1G\n", "512M": "512M\n", "3G": "3G\n", "0M": "\n", "lots": "\n"} {
		if out := s.control("set_default_device_pinned_mem_limit 0 "+limit, "get_default_device_pinned_mem_limit 0"); out != want {
			t.Errorf("%s: %q, want %q", limit, out, want)
		}
	}
	if err := run(s.variables, s.root, false, os.Stderr); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("a second daemon on the same pipes: %v", err)
	}
	// A container without the daemon's shared memory gets no context, if the driver's MPS has files there.
	s.oldDriver()
	if err := os.Rename(filepath.Join(s.root, "dev/shm"), filepath.Join(s.root, "dev/other")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client(); err == nil || !strings.Contains(err.Error(), "shared memory") {
		t.Errorf("without shared memory: %v", err)
	}
}

// another starts a process of another user that connects, prints that, and ends.
func (s *env) another() *exec.Cmd {
	s.t.Helper()
	for _, dir := range []string{s.root, filepath.Dir(s.root)} { // Only root can read the test's directories.
		if err := os.Chmod(dir, 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(s.t.Context(), "/proc/self/exe")
	cmd.Env = []string{"MPS_TEST_CLIENT=" + s.root, envPipe + "=/tmp/nvidia-mps"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	return cmd
}

func TestAdmit_OtherUser_WaitsUnlessMultiUser(t *testing.T) {
	s := serve(t, true)
	mine, err := s.client()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := s.another().Output(); err != nil || string(out) != "connected\n" { // On stderr a binary built for coverage says that it has nowhere to write it.
		t.Errorf("beside another user: %s, %v", out, err)
	}
	_ = mine.Close()

	s = serve(t, false)
	if mine, err = s.client(); err != nil {
		t.Fatal(err)
	}
	waits := s.another()
	var out bytes.Buffer
	waits.Stdout = &out
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(s.log(), "push client to pending list") { // Wait until the daemon lists it.
		if t.Context().Err() != nil {
			t.Fatal("it does not wait")
		}
	}
	if err := mine.Close(); err != nil {
		t.Fatal(err)
	}
	if err := waits.Wait(); err != nil || out.String() != "connected\n" {
		t.Errorf("after the first user's last process: %s, %v", &out, err)
	}
}

func TestRun_InvalidArguments_ReturnsError(t *testing.T) {
	var out, errOut bytes.Buffer
	if code := Run([]string{"-x"}, nil, t.TempDir(), nil, &out, &errOut); code != 0 || !strings.Contains(errOut.String(), "usage") {
		t.Errorf("%d, %s", code, &errOut)
	}
	errOut.Reset()
	if code := Run(nil, []string{envPipe + "=" + t.TempDir()}, t.TempDir(), strings.NewReader("ps\n"), &out, &errOut); code != 1 || !strings.Contains(errOut.String(), "Cannot find MPS control daemon") {
		t.Errorf("%d, %s", code, &errOut)
	}
}
