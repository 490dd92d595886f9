// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"context"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/driverprogram"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/mpsd/supervisor"
)

const mpsControl = "nvidia-cuda-mps-control"

// mps is a supervisor of the driver's, with one daemon of the first GPU.
type mps struct {
	t          *testing.T
	dir        string
	want       mpsd.Daemon
	client     *mpsd.Client
	supervisor *supervisor.Supervisor
}

// startMPS starts the supervisor and a daemon, or returns nil where there is no GPU or no `libcuda`.
func startMPS(t *testing.T, d mpsd.Daemon) *mps {
	t.Helper()
	_, s, ok := machine(t)
	if !ok {
		return nil
	}
	if !hasCUDA() {
		t.Log("no libcuda.so.1 here: no client can be tried")
		return nil
	}
	if _, err := driverprogram.Find(*driverRoot, mpsControl, "install it"); err != nil {
		t.Logf("no MPS programs to run here: %v", err)
		return nil
	}
	// The daemon has a /tmp of its own.
	dir, err := os.MkdirTemp("/var", "hardware-mps-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	o := supervisor.Options{Dir: dir, Root: *driverRoot, Shm: "64M", BootID: strings.TrimSpace(string(boot)), Log: log.New(os.Stdout, "supervisor: ", 0)}
	if *devRoot != *driverRoot {
		o.DevRoot = *devRoot
	}
	m := &mps{t: t, dir: dir, want: d, client: mpsd.NewClient(filepath.Join(dir, mpsd.SocketName))}
	if m.supervisor, err = supervisor.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- m.supervisor.Serve(ctx) }()
	end := sync.OnceFunc(func() {
		_ = m.client.Stop(context.Background(), m.want.Name)
		cancel()
		<-served
		m.supervisor.Close()
		for unix.Unmount(m.shm(), unix.MNT_DETACH) == nil {
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	atEnd(end)
	for {
		if _, err := os.Lstat(filepath.Join(dir, mpsd.SocketName)); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	m.want.Name, m.want.UUID = "gpu-0", s.GPUs[0].UUID
	m.ensure()
	return m
}

func (m *mps) ensure() mpsd.Status {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	status, err := m.client.Ensure(ctx, m.want)
	if err != nil {
		m.logs()
		m.t.Fatal(err)
	}
	return status
}

// pipe is the directory that containers mount, own the daemon's.
func (m *mps) pipe() string { return filepath.Join(m.dir, m.want.Name, "pipe") }
func (m *mps) own() string  { return filepath.Join(m.dir, m.want.Name, "daemon") }
func (m *mps) shm() string  { return filepath.Join(m.dir, m.want.Name, "shm") }

// logs prints the daemon's logs.
func (m *mps) logs() {
	for _, name := range []string{"control.log", "server.log"} {
		text, err := os.ReadFile(filepath.Join(m.dir, m.want.Name, "log", name))
		if len(text) > 6000 {
			text = text[len(text)-6000:]
		}
		fmt.Printf("%s (%v):\n%s\n", name, err, text)
	}
}

// mounted is a client that sees the daemon's directories as a container does.
func (m *mps) mounted(uid int, readOnlyPipe, ownShm bool) client {
	shm := mount{From: m.shm(), To: "/dev/shm"}
	if ownShm {
		shm.From = ""
	}
	return client{UID: uid, Mounts: []mount{{From: m.pipe(), To: m.inside(), ReadOnly: readOnlyPipe}, shm}}
}

// inside is the pipe directory that clients see. It exists beside the daemon's, because no directory of the machine is
// made for it.
func (m *mps) inside() string {
	dir := filepath.Join(m.dir, "inside")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	return dir
}

func (m *mps) env(more ...string) []string {
	return append([]string{"CUDA_MPS_PIPE_DIRECTORY=" + m.inside(), "CUDA_MPS_LOG_DIRECTORY=/nowhere"}, more...)
}

// ask sends commands to the daemon as root on the node.
func (m *mps) ask(commands string) string {
	out, err := client{}.program(commands+"\n", []string{mpsControl}, "CUDA_MPS_PIPE_DIRECTORY="+m.own())
	if err != nil {
		return strings.TrimSpace(fmt.Sprintf("%v: %s", err, out))
	}
	return out
}

func TestMPS_ClientsOfContainers_Connect(t *testing.T) {
	m := startMPS(t, mpsd.Daemon{Users: "many"})
	if m == nil {
		return
	}
	status := m.ensure()
	note("mps.daemon.manyUsers", status.ManyUsers)
	for _, uid := range []int{0, 1000} {
		for _, readOnly := range []bool{true, false} {
			for _, own := range []bool{false, true} {
				name := fmt.Sprintf("mps.client.uid%d.pipe-%s.shm-%s", uid, map[bool]string{true: "ro", false: "rw"}[readOnly], map[bool]string{true: "own", false: "daemon"}[own])
				_, a := m.mounted(uid, readOnly, own).start(t, m.env()...)
				note(name, outcome(a.err()))
				if a.err() != nil {
					t.Errorf("%s: %v", name, a.err())
					continue
				}
				note(name+".millis", a.Millis)
			}
		}
	}
	for _, dir := range []string{m.pipe(), m.own(), m.shm(), filepath.Join(m.dir, m.want.Name, "log")} {
		var list []string
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if info, err := d.Info(); err == nil {
				stat := info.Sys().(*syscall.Stat_t)
				list = append(list, fmt.Sprintf("%s %d:%d %d %s", info.Mode(), stat.Uid, stat.Gid, stat.Size, strings.TrimPrefix(path, dir)))
			}
			return nil
		})
		note("mps.files."+filepath.Base(dir), list)
	}
	// A process without the daemon's directories, for comparison.
	_, a := client{}.start(t, "CUDA_MPS_PIPE_DIRECTORY=/nowhere")
	note("mps.client.none", outcome(a.err()))
	m.logs()
}

// named is a command whose server has no number, so that two runs have the same facts.
func named(command, server string) string {
	if server == "" {
		return command
	}
	return strings.ReplaceAll(command, server, "SERVER")
}

// servers returns the PIDs of the daemon's servers.
func (m *mps) servers() (pids []string) { return strings.Fields(m.ask("get_server_list")) }

func TestMPS_Limits_BindClients(t *testing.T) {
	const gib = 1 << 30
	limit := uint64(4 * gib)
	m := startMPS(t, mpsd.Daemon{Users: "many", MemoryLimit: &limit, Threads: 50})
	if m == nil {
		return
	}
	const most = 8 << 10
	_, whole := client{}.start(t, "CUDA_MPS_PIPE_DIRECTORY=/nowhere")
	note("mps.limit.none", whole)
	for _, c := range []struct {
		name string
		env  []string
		mib  int64
		sms  int // percent
	}{
		{"daemon-4G-50", nil, 4 << 10, 50},
		{"own-2G-25", []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}, 2 << 10, 25},
		{"own-6G-75", []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=6144M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=75"}, 4 << 10, 50},
	} {
		full := m.mounted(1000, true, false)
		full.MiB = most
		r, a := full.start(t, m.env(c.env...)...)
		note("mps.limit."+c.name, a)
		if a.err() != nil || a.MiB > c.mib || a.Multiprocessors > whole.Multiprocessors*c.sms/100 {
			t.Errorf("%s: %v, %d MiB, %d SMs, want at most %d MiB and %d %% of the SMs", c.name, a.err(), a.MiB, a.Multiprocessors, c.mib, c.sms)
		}
		// A second process of the same share, while the first keeps its memory.
		_, second := full.start(t, m.env(c.env...)...)
		note("mps.limit."+c.name+".second", second)
		_ = r.in.Close()
	}
	for _, s := range m.servers() {
		note("mps.limit.readback", m.ask("get_device_pinned_mem_limit "+s+" 0\nget_active_thread_percentage "+s))
	}
	note("mps.limit.readback.default", m.ask("get_default_device_pinned_mem_limit 0\nget_default_active_thread_percentage"))
}

func TestMPS_Commands_Texts(t *testing.T) {
	m := startMPS(t, mpsd.Daemon{Users: "many"})
	if m == nil {
		return
	}
	_, a := m.mounted(1000, true, false).start(t, m.env()...)
	note("mps.commands.client", a)
	server := strings.Join(m.servers(), " ")
	note("mps.commands.server-list", server)
	for _, command := range []string{
		"get_server_list", "get_server_status " + server, "get_server_status 1", "get_client_list " + server, "get_device_client_list",
		"get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0", "get_active_thread_percentage " + server,
		"get_active_thread_percentage 1", "get_device_pinned_mem_limit " + server + " 0", "get_device_pinned_mem_limit 1 0",
		"set_default_device_pinned_mem_limit 0 4096M\nget_default_device_pinned_mem_limit 0", "set_default_device_pinned_mem_limit 0 4097M\nget_default_device_pinned_mem_limit 0",
		"set_default_device_pinned_mem_limit 0 1048576M\nget_default_device_pinned_mem_limit 0", "set_default_device_pinned_mem_limit 0 143771M\nget_default_device_pinned_mem_limit 0",
		"set_default_device_pinned_mem_limit 9 1G", "set_default_device_pinned_mem_limit 0 nonsense", "set_default_device_pinned_mem_limit 0 0M\nget_default_device_pinned_mem_limit 0",
		"set_default_active_thread_percentage 101\nget_default_active_thread_percentage", "set_default_active_thread_percentage 33\nget_default_active_thread_percentage",
		"set_device_pinned_mem_limit " + server + " 0 8192M\nget_device_pinned_mem_limit " + server + " 0", "set_active_thread_percentage " + server + " 40\nget_active_thread_percentage " + server,
		"nonsense", "terminate_client 1 1", "ps", "lspart", "help", "",
	} {
		out, err := client{}.program(command+"\n", []string{mpsControl}, "CUDA_MPS_PIPE_DIRECTORY="+m.own())
		note("mps.commands."+named(command, server), fmt.Sprintf("%s | %s", outcome(err), out))
	}
	out, err := client{}.program("get_server_list\n", []string{mpsControl}, "CUDA_MPS_PIPE_DIRECTORY=/nowhere")
	note("mps.commands.no-daemon", fmt.Sprintf("%s | %s", outcome(err), out))
	for _, flag := range []string{"-nonsense", "-multiuser-server", "-h", "-v"} {
		dir := t.TempDir()
		cmd := exec.Command(mpsControl, "-f", flag)
		cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+dir, "CUDA_MPS_LOG_DIRECTORY="+dir)
		out, err := output(cmd, 2*time.Second)
		note("mps.daemon.flag "+flag, fmt.Sprintf("%s | %s", outcome(err), out))
	}
	m.logs()
}

func TestMPS_Users_ServedTogether(t *testing.T) {
	for _, users := range []string{"many", "one"} {
		m := startMPS(t, mpsd.Daemon{Users: users})
		if m == nil {
			return
		}
		for _, uid := range []int{0, 1000, 2000} {
			c := m.mounted(uid, true, false)
			var a answer
			if users == "one" {
				// It waits for the other user's end, so a short limit suffices.
				_, a = c.startWithin(t, 4*time.Second, m.env()...)
			} else {
				_, a = c.start(t, m.env()...)
			}
			note(fmt.Sprintf("mps.users.%s.uid%d", users, uid), outcome(a.err()))
			if users == "many" && a.err() != nil {
				t.Errorf("user %d beside others: %v", uid, a.err())
			}
		}
		note("mps.users."+users+".servers", len(m.servers()))
	}
}

// alive reports whether a process runs, with its group.
func alive(pid int) string {
	if syscall.Kill(pid, 0) != nil {
		return "gone"
	}
	group, err := unix.Getpgid(pid)
	if err != nil {
		return "gone"
	}
	state := "?"
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		if _, rest, ok := strings.Cut(string(stat), ") "); ok {
			state = rest[:1]
		}
	}
	session, _ := unix.Getsid(pid)
	return fmt.Sprintf("state %s, own group %v, own session %v", state, group == pid, session == pid)
}

func TestMPS_DaemonKilled_ServersAndClients(t *testing.T) {
	m := startMPS(t, mpsd.Daemon{Users: "many"})
	if m == nil {
		return
	}
	r, a := m.mounted(1000, true, false).start(t, m.env()...)
	note("mps.kill.client", outcome(a.err()))
	daemon := m.ensure().PID
	server, _ := strconv.Atoi(strings.Join(m.servers(), ""))
	group, _ := unix.Getpgid(server)
	note("mps.kill.daemon", alive(daemon))
	note("mps.kill.server", alive(server))
	note("mps.kill.server-in-group-of-daemon", group == daemon)
	if server == 0 {
		return
	}
	_ = syscall.Kill(server, syscall.SIGKILL)
	began := time.Now()
	note("mps.kill.server-killed.client", outcome(r.run("add", 1, 10*time.Second).err()))
	note("mps.kill.server-killed.client-millis", time.Since(began).Milliseconds())
	note("mps.kill.server-killed.daemon", alive(daemon))
	r, a = m.mounted(1000, true, false).start(t, m.env()...)
	note("mps.kill.server-killed.next-client", outcome(a.err()))
	server, _ = strconv.Atoi(strings.Join(m.servers(), ""))
	_ = syscall.Kill(daemon, syscall.SIGKILL)
	note("mps.kill.daemon-killed.client", outcome(r.run("add", 1, 10*time.Second).err()))
	note("mps.kill.daemon-killed.server", alive(server))
	began = time.Now()
	for m.ensure().PID == daemon && time.Since(began) < 10*time.Second {
		time.Sleep(10 * time.Millisecond)
	}
	_, a = m.mounted(1000, true, false).start(t, m.env()...)
	note("mps.kill.daemon-killed.next-client", outcome(a.err()))
	note("mps.kill.daemon-killed.server-then", alive(server))
}

func TestMPS_ClientsFault_OthersFate(t *testing.T) {
	m := startMPS(t, mpsd.Daemon{Users: "many"})
	if m == nil {
		return
	}
	// Two seconds of clock cycles at the highest clock of a GPU.
	const cycles = 4_000_000_000
	c := m.mounted(1000, true, false)
	bystander, a := c.start(t, m.env()...)
	note("mps.fault.bystander", outcome(a.err()))
	killed, a := c.start(t, m.env()...)
	note("mps.fault.client", outcome(a.err()))
	server := strings.Join(m.servers(), "")
	note("mps.fault.status-before", m.ask("get_server_status "+server))
	note("mps.fault.spin", killed.run("spin", cycles, 30*time.Second))
	killed.send("spin", 100*cycles)
	time.Sleep(500 * time.Millisecond) // The kernel runs.
	note("mps.fault.terminate", m.ask(fmt.Sprintf("terminate_client %s %d", server, killed.cmd.Process.Pid)))
	note("mps.fault.terminated.client", outcome(killed.next(10*time.Second).err()))
	note("mps.fault.terminated.bystander", bystander.run("add", 1, 10*time.Second))
	note("mps.fault.terminated.status", m.ask("get_server_status "+server))
	killed, _ = c.start(t, m.env()...)
	killed.send("spin", 100*cycles)
	time.Sleep(500 * time.Millisecond)
	_ = killed.cmd.Process.Kill()
	note("mps.fault.killed.bystander", bystander.run("add", 1, 20*time.Second))
	server = strings.Join(m.servers(), "")
	note("mps.fault.killed.status", m.ask("get_server_status "+server))
	faulty, a := c.start(t, m.env()...)
	note("mps.fault.faulty", outcome(a.err()))
	note("mps.fault.faulty.itself", outcome(faulty.run("fault", 0, 20*time.Second).err()))
	for range 3 {
		note("mps.fault.faulty.status", m.ask("get_server_list")+": "+m.ask("get_server_status "+server))
		time.Sleep(200 * time.Millisecond)
	}
	note("mps.fault.faulty.bystander", outcome(bystander.run("add", 1, 20*time.Second).err()))
	_, a = c.startWithin(t, 5*time.Second, m.env()...)
	note("mps.fault.faulty.new-client-while-others-live", outcome(a.err()))
	note("mps.fault.faulty.status-with-new", m.ask("get_server_list")+": "+m.ask("get_server_status "+server))
	for _, r := range []*running{bystander, faulty, killed} {
		_ = r.cmd.Process.Kill()
	}
	began := time.Now()
	_, a = c.startWithin(t, 20*time.Second, m.env()...)
	note("mps.fault.faulty.new-client-after", outcome(a.err()))
	note("mps.fault.faulty.new-client-after.millis", time.Since(began).Milliseconds())
	note("mps.fault.faulty.servers-after", m.ask("get_server_list"))
	began = time.Now()
	status := m.ensure() // It returns once the server serves again.
	note("mps.fault.ensure.millis", time.Since(began).Milliseconds())
	note("mps.fault.ensure.faults", status.Faults)
	note("mps.fault.ensure.restarts", status.Restarts)
	if status.Faults == 0 {
		t.Error("the supervisor did not see a fault")
	}
	if _, a = c.start(t, m.env()...); a.err() != nil {
		t.Errorf("a client after the fault: %v", a.err())
	}
	m.logs()
}

// TestMPS_TenantCommands_Effect sends the daemon's commands from where a tenant is.
func TestMPS_TenantCommands_Effect(t *testing.T) {
	for _, uid := range []int{1000, 0} {
		for _, readOnly := range []bool{true, false} {
			m := startMPS(t, mpsd.Daemon{Users: "many"})
			if m == nil {
				return
			}
			where := fmt.Sprintf("mps.tenant.uid%d.%s.", uid, map[bool]string{true: "ro", false: "rw"}[readOnly])
			c := m.mounted(uid, readOnly, false)
			_, a := c.start(t, m.env()...)
			note(where+"client", outcome(a.err()))
			server := strings.Join(m.servers(), "")
			daemon := m.ensure().PID
			for _, command := range []string{
				"get_server_list", "set_default_active_thread_percentage 13", "set_default_device_pinned_mem_limit 0 1G",
				"set_active_thread_percentage " + server + " 14", "shutdown_server " + server, "quit",
			} {
				out, err := c.program(command+"\n", []string{mpsControl}, m.env()...)
				note(where+named(command, server), fmt.Sprintf("%s | %s", outcome(err), out))
			}
			threads := m.ask("get_default_active_thread_percentage")
			note(where+"threads-then", threads)
			note(where+"daemon-then", alive(daemon))
			if now := m.ensure(); threads != "100.0" || now.PID != daemon {
				t.Errorf("user %d changed the limit of the SMs to %q, or ended the daemon (process %d, then %d)", uid, threads, daemon, now.PID)
			}
			if !readOnly {
				out, err := c.program("", []string{"sh", "-c", "rm -f " + m.inside() + "/control; ls -la " + m.inside()})
				note(where+"remove", fmt.Sprintf("%s | %s", outcome(err), out))
			}
		}
	}
}

// TestMPS_PipesFiles_Needed connects clients that see some of the pipe directory's files only.
func TestMPS_PipesFiles_Needed(t *testing.T) {
	m := startMPS(t, mpsd.Daemon{Users: "many"})
	if m == nil {
		return
	}
	// The supervisor's directory for clients has the first of these.
	for n, files := range []map[string]string{
		{"control": "control"},
		{"control": "control", "log": "log"},
		{"control": "control", "log": "log", "control_lock": "control_lock"},
		{"control": "control", "log": "log", "control_lock": "control_lock", "nvidia-cuda-mps-control.pid": "nvidia-cuda-mps-control.pid"},
		{"control": "control", "log": "log", "control_lock": "control_lock", "nvidia-cuda-mps-control.pid": "nvidia-cuda-mps-control.pid", "control_privileged": "control"},
	} {
		dir := filepath.Join(m.dir, fmt.Sprint("links", n))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for as, name := range files {
			if err := os.Link(filepath.Join(m.own(), name), filepath.Join(dir, as)); err != nil {
				t.Fatal(err)
			}
		}
		for _, uid := range []int{1000, 0} {
			c := client{UID: uid, Mounts: []mount{{From: dir, To: m.inside(), ReadOnly: true}, {From: m.shm(), To: "/dev/shm"}}}
			_, a := c.startWithin(t, 8*time.Second, m.env()...)
			note(fmt.Sprintf("mps.files.needed.%d.uid%d", n, uid), outcome(a.err()))
			for _, command := range []string{"get_server_list", "set_default_active_thread_percentage 17"} {
				out, err := c.program(command+"\n", []string{mpsControl}, m.env()...)
				note(fmt.Sprintf("mps.files.needed.%d.uid%d.%s", n, uid, command), fmt.Sprintf("%s | %s", outcome(err), out))
			}
			note(fmt.Sprintf("mps.files.needed.%d.uid%d.then", n, uid), m.ask("get_default_active_thread_percentage"))
		}
	}
}

// TestMPS_DaemonAgain_Times notes how long a daemon takes to end and to start.
func TestMPS_DaemonAgain_Times(t *testing.T) {
	m := startMPS(t, mpsd.Daemon{Users: "many"})
	if m == nil {
		return
	}
	for range 2 {
		began := time.Now()
		_ = m.client.Stop(t.Context(), m.want.Name)
		note("mps.again.stop-millis", time.Since(began).Milliseconds())
		began = time.Now()
		m.ensure()
		note("mps.again.start-millis", time.Since(began).Milliseconds())
	}
}
