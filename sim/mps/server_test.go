// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

// until polls until a condition holds.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for limit := time.After(time.Minute); !done(); {
		select {
		case <-limit:
			t.Fatalf("not within a minute: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func (s *env) shm() []string {
	names, err := filepath.Glob(filepath.Join(s.root, "dev/shm/cuda.shm.*"))
	if err != nil {
		s.t.Fatal(err)
	}
	return names
}

func (s *env) must() *Client {
	s.t.Helper()
	c, err := s.client()
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func TestLeave_ClientGone_RemovesSharedMemory(t *testing.T) {
	s := serve(t, true)
	s.oldDriver()
	c := s.must()
	if len(s.shm()) != 1 {
		t.Errorf("%v", s.shm())
	}
	_ = c.Close()
	until(t, "the shared memory is removed", func() bool { return len(s.shm()) == 0 })
}

// oldDriver makes the machine's driver one whose MPS has files in /dev/shm.
func (s *env) oldDriver() {
	simtest.Change(s.t, engine.Open(s.root, nil), func(s *engine.State) { s.Profile.Driver.Version = "570.172.08" })
}

// TestFault_OneClient_EndsAll has the states and answers of test/hardware/recorded.
func TestFault_OneClient_EndsAll(t *testing.T) {
	s := serve(t, true)
	first, second := s.must(), s.must()
	pid := strings.TrimSpace(s.control("get_server_list"))
	if err := first.Fault(); err == nil {
		t.Error("it succeeds")
	}
	if err := second.Alloc(1 << 20); err == nil || !strings.Contains(err.Error(), "illegal memory access") {
		t.Errorf("the other one: %v", err)
	}
	if out := s.control("get_server_status " + pid); out != "FAULT\n" {
		t.Errorf("%q", out)
	}
	if _, err := s.client(); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("a new client beside the others: %v", err)
	}
	_, _ = first.Close(), second.Close()
	until(t, "the server serves again", func() bool { return s.control("get_server_status "+pid) == "ACTIVE\n" })
	if err := s.must().Alloc(1 << 20); err != nil {
		t.Error(err)
	}
}

// TestCommand_Tenants_OnlyByTheirSocket has a tenant that is root on the node, and sees the socket for all users alone.
func TestCommand_Tenants_OnlyByTheirSocket(t *testing.T) {
	s := serve(t, true)
	tenant := filepath.Join(s.root, "tenant")
	if err := os.Mkdir(tenant, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(s.variables[envPipe], ControlSocket), filepath.Join(tenant, ControlSocket)); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"get_server_list": "", "set_default_active_thread_percentage 17": "Insufficient privileges", "quit": "Not enough privilege",
		"start_server -uid 0": "",
	} {
		var out bytes.Buffer
		if code := control(map[string]string{envPipe: tenant}, strings.NewReader(command+"\n"), &out, &out); code != 0 || !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s: %d, %q, want %q", command, code, &out, want)
		}
	}
	if out := s.control("get_default_active_thread_percentage"); out != "100.0\n" {
		t.Errorf("the default is %q", out)
	}
}

// TestRun_DeadDaemonsFiles_RemovesThem checks that a daemon removes the files of a killed daemon, but not those in
// use.
func TestRun_DeadDaemonsFiles_RemovesThem(t *testing.T) {
	root := t.TempDir()
	e := simtest.MachineIn(t, root, "hgx-h100")
	pipe, shm := filepath.Join(root, "pipe"), filepath.Join(root, "shm")
	for _, dir := range []string{pipe, shm} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"pipe/" + ControlSocket: "", "pipe/" + Program + ".pid": "4194303\n", "shm/cuda.shm.0.3fffff.1": "", "shm/cuda.shm.0.3ffffe.1": "",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	simtest.Change(t, e, func(s *engine.State) {
		if err := s.AddProcess(&s.GPUs[0], engine.Process{PID: 7, Name: processName, MemoryMiB: 5}); err != nil {
			t.Error(err)
		}
	})
	variables := map[string]string{envPipe: pipe, envLog: t.TempDir(), envDevices: "0", "GPUSIM_SHM": shm}
	done := make(chan error, 1)
	go func() { done <- run(variables, root, true, io.Discard) }()
	until(t, "it serves", func() bool { return serves(filepath.Join(pipe, ControlSocket)) })
	s := &env{t: t, root: root, variables: variables}
	if g := s.gpu(); len(g.Processes) != 0 {
		t.Errorf("processes are left: %+v", g.Processes)
	}
	left, err := filepath.Glob(filepath.Join(shm, "*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "cuda.shm.0.3ffffe.1" {
		t.Errorf("%v, %v", left, err)
	}
	s.control("quit")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestShut_Forced_EndsClients(t *testing.T) {
	for _, c := range []struct {
		name, command string
		running       bool
	}{
		{"by force, with its clients", "shutdown_server PID -f", false},
		{"a client", "terminate_client PID CLIENT", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, true)
			client := s.must()
			if err := client.Alloc(1 << 30); err != nil {
				t.Fatal(err)
			}
			pid := strings.TrimSpace(s.control("get_server_list"))
			list := strings.TrimSpace(s.control("get_client_list " + pid))
			if out := s.control(strings.NewReplacer("PID", pid, "CLIENT", list).Replace(c.command)); out != "" {
				t.Error(out)
			}
			if err := client.Lost(); err == nil {
				t.Error("the client still has its connection")
			}
			until(t, "its memory is free", func() bool { return len(s.gpu().Processes) == 0 })
			if running := s.control("get_server_list") != ""; running != c.running {
				t.Errorf("the server runs: %t", running)
			}
			_ = client.Close()
			client = s.must() // The server runs again.
			_ = client.Close()
		})
	}
}

// TestShut_NotForced_WaitsForClients checks that the server's clients continue without force, and that new clients
// wait for the next server.
func TestShut_NotForced_WaitsForClients(t *testing.T) {
	s := serve(t, false)
	first := s.must()
	pid := strings.TrimSpace(s.control("get_server_list"))
	s.control("set_device_pinned_mem_limit "+pid+" 0 1G", "shutdown_server "+pid)
	if err := first.Alloc(1 << 30); err != nil {
		t.Error(err)
	}
	second := make(chan *Client, 1)
	go func() {
		c, err := s.client()
		if err != nil {
			t.Error(err)
		}
		second <- c
	}()
	until(t, "the second waits", func() bool { return strings.Contains(s.log(), "push client to pending list") })
	_ = first.Close()
	if c := <-second; c != nil {
		if c.LimitMiB != 81559-454 {
			t.Errorf("the new server has the old one's limit: %d", c.LimitMiB)
		}
		_ = c.Close()
	}
}

func (s *env) log() string { return s.logged.String() }

// TestAdmit_MultiUser_ServesAll checks that a multi-user daemon's server belongs to user 0.
func TestAdmit_MultiUser_ServesAll(t *testing.T) {
	s := serve(t, true)
	s.control("start_server -uid 1000")
	c := s.must()
	_ = c.Close()
}

// TestLeave_LastClient_ServerStays checks that the server keeps its limits without clients.
func TestLeave_LastClient_ServerStays(t *testing.T) {
	s := serve(t, false)
	c := s.must()
	pid := strings.TrimSpace(s.control("get_server_list"))
	s.control("set_device_pinned_mem_limit " + pid + " 0 2G")
	_ = c.Close()
	until(t, "the client is gone", func() bool { return len(s.gpu().Processes) == 0 })
	if c = s.must(); c.LimitMiB != 2048 {
		t.Errorf("limit %d", c.LimitMiB)
	}
	_ = c.Close()
}

// TestAccount_TwoConnections_OneProcess checks that a process with two connections counts once, until both are
// closed.
func TestAccount_TwoConnections_OneProcess(t *testing.T) {
	s := serve(t, true)
	a, b := s.must(), s.must()
	if err := errors.Join(a.Alloc(1<<30), b.Alloc(2<<30)); err != nil {
		t.Fatal(err)
	}
	if g := s.gpu(); g.UsedMiB() != 3072 || len(g.Processes) != 1 {
		t.Errorf("%+v", g.Processes)
	}
	_ = a.Close()
	until(t, "the first is gone", func() bool { g := s.gpu(); return g.UsedMiB() == 2048 })
	_ = b.Close()
}

// TestAdmit_ClientGoesWhileWaiting_Ends checks that the daemon does not wait for an ended process.
func TestAdmit_ClientGoesWhileWaiting_Ends(t *testing.T) {
	root := t.TempDir()
	d := newDaemon(engine.Open(root, nil), root, "0", t.TempDir(), false, log.New(io.Discard, "", 0))
	if err := d.start(1); err != nil {
		t.Fatal(err)
	}
	until(t, "the server serves", func() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.listed() })
	d.clients[&client{}] = true
	here, there := pair(t)
	done := make(chan error, 1)
	go func() {
		_, _, err := d.admit(hello{}, &unix.Ucred{Pid: 5, Uid: 2}, here, bufio.NewReader(here))
		done <- err
	}()
	_ = there.Close()
	select {
	case err := <-done:
		if err == nil {
			t.Error("it was given a context")
		}
	case <-time.After(time.Minute):
		t.Error("the daemon waits on")
	}
}

func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	if a, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

func FuzzCommand(f *testing.F) {
	for _, line := range []string{"", "ps", "quit -t 1", "start_server -uid 9", "set_default_device_pinned_mem_limit 0 10G", "set_active_thread_percentage 1", "terminate_client 1"} {
		f.Add(line)
	}
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, line string) {
		d := newDaemon(engine.Open(root, nil), root, "0", root, false, log.New(io.Discard, "", 0))
		_, _ = d.command(line, uint32(os.Getuid()), true)
		if d.defaultThreads < 1 || d.defaultThreads > 100 {
			t.Errorf("%q sets %d percent", line, d.defaultThreads)
		}
		_ = clientLimit(line)
	})
}

// FuzzConnection checks that the daemon reads any input and closes the connection.
func FuzzConnection(f *testing.F) {
	for _, r := range []request{{Command: "ps"}, {Alloc: 1 << 60}, {Hello: &hello{Memory: "0=1G", Threads: "50"}}} {
		line, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(line, '\n'))
	}
	f.Add([]byte("{}\n"))
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, said []byte) {
		d := newDaemon(engine.Open(root, nil), root, "0", root, true, log.New(io.Discard, "", 0))
		here, there := pair(t)
		go func() {
			_, _ = there.Write(said)
			_ = there.CloseWrite()
			_, _ = io.Copy(io.Discard, there)
		}()
		d.serve(here, false)
		if len(d.clients) != 0 {
			t.Errorf("%q leaves a client", said)
		}
	})
}

// TestStart_ServerInStart_IsNotListedAndKeepsItsDefaults checks NVIDIA's semantics of a server that starts.
func TestStart_ServerInStart_IsNotListedAndKeepsItsDefaults(t *testing.T) {
	s := serve(t, true)
	fault := func(line string) {
		if err := os.WriteFile(filepath.Join(s.root, engine.Dir, "mps-fault"), []byte(line), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ fault, before, after string }{
		{"server 0 1 4", "", "1G\n"},
		{"late 0 1 4", "", "1G\n"},
		{"server 0 1 2 4", "PID\n", "Server PID not found\n"},
	} {
		s.control("set_default_device_pinned_mem_limit 0 1G")
		fault(c.fault)
		s.control("get_server_list", "set_default_device_pinned_mem_limit 0 2G")
		list := s.control("get_server_list")
		if pid := strings.TrimSpace(list); pid != "" {
			list = "PID\n"
		}
		if list != c.before {
			t.Errorf("%s: the list is %q, want %q", c.fault, list, c.before)
		}
		if out := s.control("get_device_pinned_mem_limit " + strconv.Itoa(os.Getpid()) + " 0"); out != strings.Replace(c.after, "PID", strconv.Itoa(os.Getpid()), 1) {
			t.Errorf("%s: %q, want %q", c.fault, out, c.after)
		}
		fault("")
		s.control("shutdown_server " + strings.TrimSpace(s.control("get_server_list")) + " -f")
	}
	// A client waits for a server in start.
	fault("server 0 1 2")
	s.control("ps")
	waits := make(chan *Client, 1)
	go func() {
		c, err := s.client()
		if err != nil {
			t.Error(err)
		}
		waits <- c
	}()
	until(t, "the client waits", func() bool { return strings.Contains(s.log(), "Server is not ready, push client to pending list") })
	s.control("ps")
	if c := <-waits; c != nil {
		_ = c.Close()
	}
	fault("answer 0 get_server_list not now")
	if out := s.control("get_server_list"); out != "not now\n" {
		t.Error(out)
	}
	fault("")
}

// TestServe_DaemonGone_Ends checks that a server's process is ready, and ends with its daemon.
func TestServe_DaemonGone_Ends(t *testing.T) {
	read, write := io.Pipe()
	out := make(chan string, 1)
	done := make(chan int, 1)
	go func() { done <- Serve(read, writerFunc(func(b []byte) { out <- string(b) })) }()
	if line := <-out; line != "ready\n" {
		t.Error(line)
	}
	_ = write.Close()
	if code := <-done; code != 0 {
		t.Errorf("it ended with %d", code)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }
