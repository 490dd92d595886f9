// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpu-dra-driver/internal/nvml"
)

// daemon is NVIDIA's control daemon without the driver's supervisor, so that its output is seen.
type daemon struct {
	cmd *exec.Cmd
	dir string
	mu  sync.Mutex
	out bytes.Buffer
}

func (d *daemon) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out.Write(p)
}

// printed returns what the daemon printed since the last call.
func (d *daemon) printed() (lines []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for line := range strings.Lines(d.out.String()) {
		if !strings.Contains(line, "UI") && !strings.Contains(line, "Cmd:") && !strings.Contains(line, "Accepting connection") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	d.out.Reset()
	return lines
}

func startDaemon(t *testing.T) *daemon {
	t.Helper()
	if _, _, ok := machine(t); !ok || !hasCUDA() {
		return nil
	}
	path, err := exec.LookPath(mpsControl)
	if err != nil {
		t.Logf("no MPS programs to run here: %v", err)
		return nil
	}
	// Other users must reach it: a client that cannot, uses the GPU without the daemon and says nothing.
	dir, err := os.MkdirTemp("/var", "hardware-daemon-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d := &daemon{cmd: exec.Command(path, "-f", "-multiuser-server"), dir: dir}
	d.cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+dir, "CUDA_MPS_LOG_DIRECTORY="+dir)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	d.cmd.Stdout, d.cmd.Stderr = d, d
	d.cmd.WaitDelay = time.Second
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.kill)
	atEnd(d.kill)
	for range 500 {
		if _, err := os.Lstat(filepath.Join(dir, "control_privileged")); err == nil && d.ask("get_server_list") == "" {
			return d
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the MPS daemon does not answer within 5 s")
	return nil
}

func (d *daemon) kill() {
	_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
	_ = d.cmd.Wait()
}

func (d *daemon) env() string { return "CUDA_MPS_PIPE_DIRECTORY=" + d.dir }

func (d *daemon) ask(commands string) string {
	out, err := client{}.program(commands+"\n", []string{mpsControl}, d.env())
	if err != nil {
		return strings.TrimSpace(fmt.Sprintf("%v: %s", err, out))
	}
	return out
}

// watch notes changes of the server's status for a time.
func (d *daemon) watch(limit time.Duration) (seen []string) {
	began, last := time.Now(), ""
	for time.Since(began) < limit {
		status := d.ask("get_server_list")
		if status != "" {
			status = d.ask("get_server_status " + status)
		}
		if status != last || len(seen) == 0 {
			seen = append(seen, fmt.Sprintf("%d ms: %q", time.Since(began).Milliseconds(), status))
			last = status
		}
		time.Sleep(50 * time.Millisecond)
	}
	return seen
}

// recovers notes how long new clients fail.
func (d *daemon) recovers(t *testing.T, name string, limit time.Duration) {
	began := time.Now()
	for {
		_, a := client{UID: 1000}.startWithin(t, 5*time.Second, d.env())
		if a.err() == nil || time.Since(began) > limit {
			note(name, fmt.Sprintf("%s after %d ms", outcome(a.err()), time.Since(began).Milliseconds()))
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (d *daemon) notes(name string) {
	note(name+".printed", d.printed())
	text, err := os.ReadFile(filepath.Join(d.dir, "server.log"))
	if len(text) > 3000 {
		text = text[len(text)-3000:]
	}
	note(name+".server-log", strings.Split(strings.TrimSpace(string(text)), "\n"))
	var files []string
	entries, _ := os.ReadDir(d.dir)
	for _, e := range entries {
		files = append(files, e.Name())
	}
	note(name+".files", fmt.Sprint(files, outcome(err)))
}

func TestRawMPS_Faults_Recovery(t *testing.T) {
	const second = 2_000_000_000 // clock cycles
	for _, c := range []struct {
		name string
		do   func(r *running)
	}{
		{"idle-killed", func(r *running) { _ = r.cmd.Process.Kill() }},
		{"kernel-killed", func(r *running) {
			r.send("spin", 5*second)
			time.Sleep(300 * time.Millisecond)
			_ = r.cmd.Process.Kill()
		}},
		{"kernel-terminated", func(r *running) {
			r.send("spin", 5*second)
			time.Sleep(300 * time.Millisecond)
			_ = r.cmd.Process.Signal(syscall.SIGTERM)
		}},
		{"illegal-access", func(r *running) { note("raw.illegal-access.itself", outcome(r.run("fault", 0, 10*time.Second).err())) }},
	} {
		d := startDaemon(t)
		if d == nil {
			return
		}
		lib, _, _ := machine(t)
		session, err := lib.Open()
		if err != nil {
			t.Fatal(err)
		}
		gpu, err := session.Device(0)
		if err != nil {
			t.Fatal(err)
		}
		set, err := session.Events([]nvml.Device{gpu})
		if err != nil {
			t.Fatal(err)
		}
		bystander, a := client{UID: 1000}.start(t, d.env())
		note("raw."+c.name+".bystander-start", outcome(a.err()))
		other, a := client{UID: 1000}.start(t, d.env())
		note("raw."+c.name+".other-start", outcome(a.err()))
		note("raw."+c.name+".before", d.printed())
		c.do(other)
		note("raw."+c.name+".status", d.watch(1500*time.Millisecond))
		note("raw."+c.name+".bystander", outcome(bystander.run("add", 1, 10*time.Second).err()))
		d.notes("raw." + c.name)
		_, a = client{UID: 1000}.startWithin(t, 5*time.Second, d.env())
		note("raw."+c.name+".new-beside", outcome(a.err()))
		_ = bystander.cmd.Process.Kill()
		_ = other.cmd.Process.Kill()
		d.recovers(t, "raw."+c.name+".new-after", 8*time.Second)
		note("raw."+c.name+".status-after", d.watch(200*time.Millisecond))
		d.notes("raw." + c.name + ".after")
		var xids []string
		for {
			event, err := set.Wait(100 * time.Millisecond)
			if err != nil {
				break
			}
			xids = append(xids, fmt.Sprintf("%+v", event))
		}
		note("raw."+c.name+".xids", xids)
		_ = set.Close()
		_ = session.Close()
		d.kill()
	}
}

func TestRawMPS_StaleSocket_Outcome(t *testing.T) {
	d := startDaemon(t)
	if d == nil {
		return
	}
	d.kill()
	_, a := client{UID: 1000}.startWithin(t, 8*time.Second, d.env())
	note("raw.stale-socket.client", outcome(a.err()))
	if err := os.Remove(filepath.Join(d.dir, "control")); err != nil {
		t.Fatal(err)
	}
	_, a = client{UID: 1000}.startWithin(t, 8*time.Second, d.env())
	note("raw.no-socket.client", outcome(a.err()))
	if err := os.WriteFile(filepath.Join(d.dir, "control"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	_, a = client{UID: 1000}.startWithin(t, 8*time.Second, d.env())
	note("raw.file-not-socket.client", outcome(a.err()))
}

func TestRawMPS_TenantOfControlOnly_Effect(t *testing.T) {
	d := startDaemon(t)
	if d == nil {
		return
	}
	only := filepath.Join(d.dir, "only")
	if err := os.Mkdir(only, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(d.dir, "control"), filepath.Join(only, "control")); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []int{1000, 0} {
		for _, command := range []string{"get_client_list SERVER", "ps", "get_device_client_list", "get_server_status SERVER", "terminate_client SERVER VICTIM", "device_query", "start_server -uid 0", "shutdown_server SERVER -f", "quit -t 1"} {
			victim, a := client{UID: 2000}.start(t, d.env())
			if a.err() != nil {
				note("raw.tenant.victim", outcome(a.err()))
				return
			}
			server, pid := d.ask("get_server_list"), fmt.Sprint(victim.cmd.Process.Pid)
			command := strings.NewReplacer("SERVER", server, "VICTIM", pid).Replace(command)
			out, err := client{UID: uid}.program(command+"\n", []string{mpsControl}, "CUDA_MPS_PIPE_DIRECTORY="+only)
			plain := func(text string) string { return strings.ReplaceAll(named(text, server), pid, "VICTIM") }
			note(fmt.Sprintf("raw.tenant.uid%d.%s", uid, plain(command)), plain(fmt.Sprintf("%s | %s", outcome(err), out)))
			note(fmt.Sprintf("raw.tenant.uid%d.%s.victim", uid, plain(command)), outcome(victim.run("add", 1, 10*time.Second).err()))
			_ = victim.in.Close()
		}
	}
	note("raw.tenant.daemon", alive(d.cmd.Process.Pid))
}

func TestRawMPS_QuitWithClients_Times(t *testing.T) {
	d := startDaemon(t)
	if d == nil {
		return
	}
	r, _ := client{UID: 1000}.start(t, d.env())
	r.send("spin", 20_000_000_000)
	time.Sleep(300 * time.Millisecond)
	began := time.Now()
	note("raw.quit.answer", d.ask("quit -t 1"))
	note("raw.quit.answer-millis", time.Since(began).Milliseconds())
	_, _ = d.cmd.Process.Wait()
	note("raw.quit.gone-millis", time.Since(began).Milliseconds())
	note("raw.quit.client", outcome(r.next(5*time.Second).err()))
	d.notes("raw.quit")
}

// TestRawMPS_ServerWithoutClients_HoldsTheGPU notes whether a server keeps its context while it has no client, which keeps
// processes without the daemon off a GPU of the mode EXCLUSIVE_PROCESS.
func TestRawMPS_ServerWithoutClients_HoldsTheGPU(t *testing.T) {
	d := startDaemon(t)
	if d == nil {
		return
	}
	lib, _, _ := machine(t)
	session, err := lib.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	gpu, err := session.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	holders := func(name string) {
		all, err := gpu.ProcessMemory()
		note("raw.idle-server."+name, strings.ReplaceAll(fmt.Sprintf("%+v, %s", all, outcome(err)), "PID:"+d.ask("get_server_list")+" ", "PID:SERVER "))
	}
	holders("before")
	began := time.Now()
	note("raw.idle-server.start", d.ask("start_server -uid 0"))
	for d.ask("get_server_list") == "" && time.Since(began) < 10*time.Second {
		time.Sleep(5 * time.Millisecond)
	}
	note("raw.idle-server.start-millis", time.Since(began).Milliseconds())
	holders("started")
	r, a := client{UID: 1000}.start(t, d.env())
	note("raw.idle-server.client", a)
	holders("with-client")
	_ = r.in.Close()
	for d.ask("get_client_list "+d.ask("get_server_list")) != "" && time.Since(began) < 20*time.Second {
		time.Sleep(5 * time.Millisecond)
	}
	holders("after-client")
	d.notes("raw.idle-server")
}

func TestRawMPS_LimitForms_Texts(t *testing.T) {
	d := startDaemon(t)
	if d == nil {
		return
	}
	for _, value := range []string{"512M", "1G", "1536M", "16M", "1M", "0M", "2048M", "nonsense", "2048M", "0", "3G", "0G", "524288K", "1073741824", "-1G", "99999999999M"} {
		note("raw.limit."+value, d.ask("set_default_device_pinned_mem_limit 0 "+value+"\nget_default_device_pinned_mem_limit 0"))
	}
	for _, value := range []string{"0", "1", "0.5", "33.3", "100", "101", "-1", "nonsense"} {
		note("raw.threads."+value, d.ask("set_default_active_thread_percentage "+value+"\nget_default_active_thread_percentage"))
	}
	d.notes("raw.limit")
}
