// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gpu-dra-driver/internal/boxtest"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/mps"
	"gpu-dra-driver/sim/simtest"
)

// TestMain lets the test's binary run as an MPS process, as the supervisor's binary does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == EnterVerb {
		fmt.Fprintln(os.Stderr, Enter(os.Args[2:]))
		os.Exit(1)
	}
	boxtest.Main(m)
}

// env is a simulated driver root and a directory for daemons.
type env struct {
	t    *testing.T
	root *driverroot.Root
	o    Options
}

func newEnv(t *testing.T) *env {
	t.Helper()
	root := simtest.Root(t, "hgx-h100", nil).Root
	// Unmount everything before the directory is removed.
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), dir) {
			t.Errorf("mounts are left in %s (%v)", dir, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &env{t: t, root: root, o: Options{
		Dir: filepath.Join(dir, "mps"), Root: root.Path, Shm: "1048576", BootID: "boot-1", Log: log.New(io.Discard, "", 0),
		settle: time.Minute, server: time.Minute, // On a busy machine a command can take many seconds.
	}}
}

// start starts a supervisor. The test's cleanup closes it and removes its daemons.
func (e *env) start() *Supervisor {
	e.t.Helper()
	s, err := New(e.t.Context(), e.o)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		for _, d := range s.list(context.Background(), "").Daemons {
			if err := s.stop(context.Background(), d.Name); err != nil && !errors.Is(err, errStopping) {
				e.t.Error(err)
			}
		}
		s.Close()
	})
	return s
}

// leave makes a directory in that of the daemons: with a note, if it is not nil, and with other files.
func (e *env) leave(name string, note any, files ...string) {
	e.t.Helper()
	dir := filepath.Join(e.o.Dir, name)
	text, isText := note.(string)
	if !isText {
		data, err := json.Marshal(note)
		if err != nil {
			e.t.Fatal(err)
		}
		text = string(data)
	}
	if err := os.MkdirAll(filepath.Join(dir, logDir), 0o755); err != nil {
		e.t.Fatal(err)
	}
	if note != nil {
		files = append(files, noteFile)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(text), 0o600); err != nil {
			e.t.Fatal(err)
		}
	}
}

func (e *env) gpu(n int) engine.GPU {
	e.t.Helper()
	s, err := e.root.State()
	if err != nil {
		e.t.Fatal(err)
	}
	return s.GPUs[n]
}

func (e *env) daemon(n int, change ...func(*mpsd.Daemon)) mpsd.Daemon {
	g := e.gpu(n)
	d := mpsd.Daemon{Name: "gpu-" + strings.NewReplacer(":", "-", ".", "-").Replace(g.Address), UUID: g.UUID, MemoryLimit: new(uint64(10 << 30))}
	for _, c := range change {
		c(&d)
	}
	return d
}

func (e *env) ensure(s *Supervisor, d mpsd.Daemon) mpsd.Status {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 2*time.Minute)
	defer cancel()
	status, err := s.ensure(ctx, d)
	if err != nil {
		e.t.Fatal(err)
	}
	return status
}

// client computes on a device as a process in a container does, with the device's own directories.
func (e *env) client(d mpsd.Daemon, limit string) (*mps.Client, error) {
	e.t.Helper()
	inside := e.t.TempDir()
	for link, to := range map[string]string{
		"tmp/nvidia-mps": filepath.Join(e.o.Dir, d.Name, pipeDir), "dev/shm": filepath.Join(e.o.Dir, d.Name, shmDir),
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(inside, link)), 0o755); err != nil {
			e.t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(inside, link)); err != nil {
			e.t.Fatal(err)
		}
	}
	for n := range 8 {
		if err := os.WriteFile(filepath.Join(inside, "dev", fmt.Sprintf("nvidia%d", n)), nil, 0o644); err != nil {
			e.t.Fatal(err)
		}
	}
	environ := []string{"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"}
	if limit != "" {
		environ = append(environ, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+limit)
	}
	ctx, cancel := context.WithTimeout(e.t.Context(), time.Minute)
	defer cancel()
	return mps.Connect(ctx, environ, inside)
}

// oldDriver makes the driver one whose MPS has files in /dev/shm.
func (e *env) oldDriver() {
	simtest.Change(e.t, engine.Open(e.root.Path, nil), func(s *engine.State) { s.Profile.Driver.Version = "570.172.08" })
}

// TestEnsure_RootOfProgramsAndLibraries_Serves has a driver root without /tmp and /dev.
func TestEnsure_RootOfProgramsAndLibraries_Serves(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.o.Root, e.o.DevRoot = filepath.Join(e.root.Path, "usr"), e.root.Path
	s := e.start()
	d := e.daemon(0)
	e.ensure(s, d)
	c, err := e.client(d, "0=4096M")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.LimitMiB != 4096 || c.UUID != d.UUID {
		t.Errorf("%+v", c.Info)
	}
}

func TestEnsure_NewDaemon_ServesWithinLimits(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	d := e.daemon(0, func(d *mpsd.Daemon) { d.Threads = 50 })
	status := e.ensure(s, d)
	if status.PID == 0 || !status.ManyUsers || status.Since.IsZero() {
		t.Errorf("%+v", status)
	}
	c, err := e.client(d, "0=4096M")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.LimitMiB != 4096 || c.Threads != 50 || c.UUID != d.UUID {
		t.Errorf("%+v", c.Info)
	}
	if err := c.Alloc(4 << 30); err != nil {
		t.Error(err)
	}
	if err := c.Alloc(1 << 20); err == nil {
		t.Error("a client has more than its limit")
	}
	if used := e.gpu(0); used.UsedMiB() != 4096 {
		t.Errorf("the GPU's processes hold %d MiB", used.UsedMiB())
	}
	// A larger share joins: the daemon's limit grows without a restart.
	d.MemoryLimit, d.Threads = new(uint64(20<<30)), 0
	if again := e.ensure(s, d); again.PID != status.PID {
		t.Error("the daemon was started anew for another limit")
	}
	big, err := e.client(d, "")
	if err != nil {
		t.Fatal(err)
	}
	defer big.Close()
	if big.LimitMiB != 20<<10 || big.Threads != 100 {
		t.Errorf("%+v", big.Info)
	}
	if err := s.stop(t.Context(), d.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(e.o.Dir, d.Name)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the daemon's directory is left: %v", err)
	}
	if used := e.gpu(0); len(used.Processes) != 0 {
		t.Errorf("processes are left: %+v", used.Processes)
	}
	if err := s.stop(t.Context(), d.Name); err != nil {
		t.Errorf("ending what is not there: %v", err)
	}
}

func TestSupervisor_DaemonDies_RestartsIt(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	d := e.daemon(1)
	status := e.ensure(s, d)
	c, err := e.client(d, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := s.list(t.Context(), "")
	// A container mounts the directory itself, not its path.
	pipe := filepath.Join(e.o.Dir, d.Name, pipeDir)
	held, err := os.Open(pipe) // The inode number is not reused while it is open.
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	mounted, err := held.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(status.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := c.Lost(); err == nil {
		t.Error("the client noticed nothing")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var now mpsd.Status
	for version := before.Version; now.Restarts == 0 || now.PID == 0; {
		l := s.list(ctx, version)
		version = l.Version
		now = l.Daemons[0]
		if ctx.Err() != nil {
			t.Fatalf("%+v", now)
		}
	}
	if now.Restarts != 1 || now.PID == status.PID {
		t.Errorf("%+v", now)
	}
	if is, err := os.Stat(pipe); err != nil || !os.SameFile(mounted, is) {
		t.Errorf("the pipe directory is another: %v", err)
	}
	again, err := e.client(d, "")
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

func TestEnsure_OtherUUID_ReplacesDaemon(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	d := e.daemon(0)
	first := e.ensure(s, d)
	d.UUID = e.gpu(1).UUID // The device name is for a slot, which now holds another board.
	second := e.ensure(s, d)
	if first.PID == second.PID || second.Restarts != 0 {
		t.Errorf("%+v, then %+v", first, second)
	}
}

// TestStop_SupervisorHangs_ClaimsAfterwardsKeepTheirDaemon: a hanging supervisor finds the request of an Unprepare that
// has ended, after it served the next claim.
func TestStop_SupervisorHangs_ClaimsAfterwardsKeepTheirDaemon(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	served, late := make(chan struct{}), make(chan struct{})
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			<-served
			defer close(late)
			r = r.WithContext(context.WithoutCancel(r.Context())) // It has not yet noticed that the connection is closed.
		}
		s.handler().ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	c := mpsd.NewClient(listener.Addr().String())
	d := e.daemon(0)
	e.ensure(s, d)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Stop(short, d.Name); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if _, err := c.Ensure(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	close(served)
	<-late
	less := e.daemon(0, func(d *mpsd.Daemon) { d.MemoryLimit = new(uint64(1 << 30)) })
	if _, err := s.ensure(short, less); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if l := s.list(t.Context(), ""); len(l.Daemons) != 1 || l.Daemons[0].PID == 0 || *l.Daemons[0].MemoryLimit != *d.MemoryLimit {
		t.Errorf("the next claim's daemon was ended: %+v", l.Daemons)
	}
}

// TestEnsure_DaemonEnds_StartsTheNext has a daemon whose stop did not wait for its end, as after its limit, and claims that come
// meanwhile.
func TestEnsure_DaemonEnds_StartsTheNext(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s, d := e.start(), e.daemon(0)
	pid := e.ensure(s, d).PID
	s.mu.Lock()
	s.daemons[d.Name].cancel(errors.New("its stop took too long"))
	s.mu.Unlock()
	failed := make(chan error, 3)
	for range cap(failed) {
		go func() {
			_, err := s.ensure(t.Context(), d)
			failed <- err
		}()
	}
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if now := e.ensure(s, d).PID; now == pid {
		t.Error("the daemon that ends serves the next claim")
	}
}

func TestNew_NoteOfThisBoot_RestoresDaemon(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	old, err := New(t.Context(), e.o)
	if err != nil {
		t.Fatal(err)
	}
	d := e.daemon(2)
	was := e.ensure(old, d)
	old.Close()
	if now := e.ensure(e.start(), d); now.PID == was.PID {
		t.Error("the daemon is not the new supervisor's")
	}
}

// TestNew_DaemonOfKilledSupervisor_EndsOnlyThatProcess: such a daemon runs on, and its number may be reused.
func TestNew_DaemonOfKilledSupervisor_EndsOnlyThatProcess(t *testing.T) {
	t.Parallel()
	for start, ends := range map[string]bool{"its own": true, "another": false, "": false} {
		t.Run(start, func(t *testing.T) {
			e := newEnv(t)
			cmd := exec.Command("sleep", "600")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			p, err := startProcess(cmd)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.kill)
			n := note{BootID: e.o.BootID, Daemon: e.daemon(0), PID: p.pid(), Started: start}
			if ends {
				if n.Started, err = started(p.pid()); err != nil {
					t.Fatal(err)
				}
			}
			e.leave(n.Daemon.Name, n)
			e.ensure(e.start(), n.Daemon)
			if ends {
				<-p.gone
			} else if now, err := started(p.pid()); err != nil {
				t.Errorf("the process that has the number now was ended (%s, %v)", now, err)
			}
		})
	}
}

// TestKill_DaemonGone_EndsItsServersOnly: a daemon can end together with its supervisor, and its servers run on.
func TestKill_DaemonGone_EndsItsServersOnly(t *testing.T) {
	// A process has no environment at the moment at which it becomes another program.
	cmd := exec.Command("sh", "-c", `sleep 600 >/dev/null 2>&1 & until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append(os.Environ(), pipeVariable, deviceVariable+"GPU-1")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	group := cmd.Process.Pid
	t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
	of := func(uuid string, pid int) note {
		return note{Daemon: mpsd.Daemon{UUID: uuid}, PID: pid, Started: "1"}
	}
	of("GPU-2", group).kill()
	of("GPU-1", group+1).kill()
	own := of("GPU-1", group)
	if !own.leftServers() {
		t.Fatal("the servers of another daemon were ended")
	}
	own.kill()
	for deadline := time.Now().Add(time.Minute); own.leftServers(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the servers run on")
		}
	}
}

func TestNew_SecondSupervisor_WaitsForTheFirst(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	first := e.start()
	d := e.daemon(0)
	e.ensure(first, d)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if second, err := New(ctx, e.o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second supervisor started beside the first: %v", err)
		second.Close()
	}
	c, err := e.client(d, "")
	if err != nil {
		t.Fatalf("the daemon of the first is not reachable: %v", err)
	}
	_ = c.Close()
	first.Close()
	e.ensure(e.start(), d)
}

func TestNew_DirectoriesOfOthers_Stay(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	other := note{BootID: "boot-0", Daemon: mpsd.Daemon{Name: "gpu-0000-1b-00-0", UUID: "GPU-1"}, PID: 1, Started: "1"}
	e.leave("gpu-0000-1b-00-0", other)
	e.leave("gpu-1", "{")
	e.leave("gpu-2", note{BootID: e.o.BootID, Daemon: mpsd.Daemon{Name: "gpu-9", UUID: "GPU-1"}})
	e.leave("gpu-3", other, "claim.json") // With a file of an administrator.
	e.leave("gpu-4", nil, "claim.json", "log/claim.json")
	e.leave("records", nil, "claim.json") // The directory is one level too high.
	e.leave("plugin", other)
	s := e.start()
	if l := s.list(t.Context(), "").Daemons; len(l) != 0 {
		t.Errorf("daemons are started: %+v", l)
	}
	// A claim whose daemon was removed already must end.
	for _, name := range []string{"gpu-3", "gpu-4", "gpu-7"} {
		if err := s.stop(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	var left []string
	_ = fs.WalkDir(os.DirFS(e.o.Dir), ".", func(path string, f fs.DirEntry, err error) error {
		if err == nil && !f.IsDir() && path != lockFile {
			left = append(left, path)
		} else if strings.HasPrefix(path, "gpu-") && f.IsDir() && !strings.Contains("gpu-3 gpu-4/log", path) {
			left = append(left, path+"/")
		}
		return err
	})
	if want := "gpu-3/claim.json gpu-4/claim.json gpu-4/log/claim.json plugin/daemon.json records/claim.json"; strings.Join(left, " ") != want {
		t.Errorf("%v are left, want %s", left, want)
	}
}

func TestEnsure_DaemonFails_ReturnsProblem(t *testing.T) {
	t.Parallel()
	for fault, test := range map[string]struct {
		want  string
		limit time.Duration
	}{"fail": {"injected fault", time.Minute}, "hang": {"not ready in time", 200 * time.Millisecond}} {
		t.Run(fault, func(t *testing.T) {
			want := test.want
			e := newEnv(t)
			s := e.start()
			stuck, fine := e.daemon(0), e.daemon(1)
			file := filepath.Join(e.root.Path, engine.Dir, "mps-fault")
			if err := os.WriteFile(file, []byte(fault+" "+stuck.UUID), 0o644); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), test.limit)
			defer cancel()
			done := make(chan error, 1)
			go func() { _, err := s.ensure(ctx, stuck); done <- err }()
			e.ensure(s, fine) // A hanging daemon does not delay another.
			if err := <-done; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), stuck.Name) {
				t.Errorf("%v, want %q in it", err, want)
			}
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if fault != "fail" {
				return
			}
			// An attempt that began before may still fail.
			for attempts := 3; ; attempts-- {
				if _, err := s.ensure(t.Context(), stuck); err == nil {
					return
				} else if attempts == 0 || !strings.Contains(err.Error(), want) {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestEnsure_LimitFailed_NextCallSetsIt joins a larger share while the daemon cannot be asked.
func TestEnsure_LimitFailed_NextCallSetsIt(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	d := e.daemon(0)
	first := e.ensure(s, d)
	found, err := findProgram(e.o.Root)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(found.Root, found.Path)
	if err := os.Rename(at, at+".away"); err != nil {
		t.Fatal(err)
	}
	d.MemoryLimit = new(uint64(20 << 30))
	if _, err := s.ensure(t.Context(), d); err == nil {
		t.Error("the daemon has another limit, although nothing can ask it")
	}
	if err := os.Rename(at+".away", at); err != nil {
		t.Fatal(err)
	}
	if again := e.ensure(s, d); again.PID != first.PID || again.Problem != "" {
		t.Errorf("%+v, then %+v", first, again)
	}
	c, err := e.client(d, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.LimitMiB != 20<<10 {
		t.Errorf("the limit is %d MiB", c.LimitMiB)
	}
}

// TestRun_CallerWaited_PausesGrowAgain counts the starts of a daemon that cannot start, after one call asked for it.
func TestRun_CallerWaited_PausesGrowAgain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := &Supervisor{
			o:       Options{Dir: dir, Root: dir, Shm: "1048576", BootID: "boot-1", Log: log.New(io.Discard, "", 0)},
			daemons: map[string]*daemon{}, changed: make(chan struct{}),
		}
		s.ctx, s.cancel = context.WithCancelCause(t.Context())
		d := s.begin(mpsd.Daemon{Name: "gpu-0", UUID: "GPU-0"}, note{})
		time.Sleep(time.Minute)
		if _, err := s.ensure(t.Context(), d.want); err == nil {
			t.Error("a daemon without a program runs")
		}
		s.mu.Lock()
		before := d.failures
		s.mu.Unlock()
		time.Sleep(time.Minute)
		s.mu.Lock()
		starts := d.failures - before
		s.mu.Unlock()
		if starts > 10 {
			t.Errorf("%d starts in a minute", starts)
		}
		if err := s.stop(t.Context(), "gpu-0"); err != nil {
			t.Error(err)
		}
	})
}

func TestEnsure_NoMultiUserMode_FallsBackOrFails(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	if err := os.WriteFile(filepath.Join(e.root.Path, engine.Dir, "mps-fault"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if status := e.ensure(s, e.daemon(0)); status.ManyUsers {
		t.Errorf("%+v", status)
	}
	_, err := s.ensure(t.Context(), e.daemon(1, func(d *mpsd.Daemon) { d.Users = "many" }))
	if err == nil || !strings.Contains(err.Error(), "multiUser") {
		t.Errorf("several users at once, where the driver cannot: %v", err)
	}
}

func TestEnsure_KernelHasSELinux_ContainersReachTheDaemon(t *testing.T) {
	t.Parallel()
	for _, selinux := range []bool{true, false} {
		e := newEnv(t)
		e.o.Filesystems = hosttest.Filesystems(t, selinux)
		s := e.start()
		d := e.daemon(0)
		e.ensure(s, d)
		for _, name := range []string{daemonDir, pipeDir, shmDir} {
			have := hosttest.SELinuxContext(filepath.Join(e.o.Dir, d.Name, name))
			if (have == "system_u:object_r:container_file_t:s0") != selinux {
				t.Errorf("SELinux %v: %s has the context %q", selinux, name, have)
			}
		}
	}
}

// TestEnsure_TenantsOfADaemon_CannotCommandIt looks from a container whose process is root on the node.
func TestEnsure_TenantsOfADaemon_CannotCommandIt(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	d := e.daemon(0)
	status := e.ensure(s, d)
	pipe := filepath.Join(e.o.Dir, d.Name, pipeDir)
	for range 2 { // Also after the daemon has started again.
		entries, err := os.ReadDir(pipe)
		if err != nil || len(entries) != 1 || entries[0].Name() != mps.ControlSocket {
			t.Fatalf("a container sees %v, %v, want the clients' socket alone", entries, err)
		}
		for _, command := range []string{"set_default_active_thread_percentage 3", "set_default_device_pinned_mem_limit 0 99G", "quit"} {
			var out bytes.Buffer
			mps.Run(nil, []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe}, e.root.Path, strings.NewReader(command+"\n"), &out, &out)
			if !strings.Contains(out.String(), "rivilege") {
				t.Errorf("%s: %q", command, &out)
			}
		}
		if c, err := e.client(d, ""); err != nil || c.LimitMiB != 10<<10 || c.Threads != 100 {
			t.Errorf("%+v, %v", c, err)
		} else {
			_ = c.Close()
		}
		if err := syscall.Kill(status.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		e.until(s, d, func(now mpsd.Status) bool { return now.PID != 0 && now.PID != status.PID })
		status = e.ensure(s, d)
	}
}

// TestRunOnce_TenantChangesServersLimits_SetAgain: over the clients' socket root can change the limits of a running server.
func TestRunOnce_TenantChangesServersLimits_SetAgain(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	s.faultPoll = 10 * time.Millisecond
	d := e.daemon(0)
	e.ensure(s, d)
	c, err := e.client(d, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pid := e.ask(d, "get_server_list")
	var out bytes.Buffer
	mps.Run(nil, []string{"CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(e.o.Dir, d.Name, pipeDir)}, e.root.Path,
		strings.NewReader("set_device_pinned_mem_limit "+pid+" 0 79G\nset_active_thread_percentage "+pid+" 1\n"), &out, &out)
	for deadline := time.Now().Add(time.Minute); ; {
		if e.ask(d, "get_device_pinned_mem_limit "+pid+" 0") == "10G" && e.ask(d, "get_active_thread_percentage "+pid) == "100.0" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the tenant's limits stay (%q)", &out)
		}
	}
}

// TestEnsure_NoClientYet_ServerHoldsTheDevice: without a server, a process that avoids the daemon can take an idle device. Root
// in a container can end a server too.
func TestEnsure_NoClientYet_ServerHoldsTheDevice(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	s.faultPoll = 10 * time.Millisecond
	d := size{20, 25}.of(e.daemon(0))
	e.ensure(s, d)
	holds := func() bool { return e.ask(d, "get_server_list") != "" }
	if !holds() {
		t.Fatal("no server runs")
	}
	e.check("before the first client", d)
	if !e.endServer(d) {
		t.Fatal("no server ran")
	}
	for deadline := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(deadline) {
			t.Fatal("no server was started again")
		}
	}
	e.check("after the server's end", d)
}

// TestEnsure_NoServerStarts_ContainersReachTheDaemon: a container's process starts a server too.
func TestEnsure_NoServerStarts_ContainersReachTheDaemon(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"answer": "starting a server failed: no server started: not now", "silent": `did not answer "start_server -uid 0" in time`,
	} {
		var out logged
		e := newEnv(t)
		e.o.Log = log.New(&out, "", 0)
		if word == "silent" {
			e.o.server = time.Second
		}
		s := e.start()
		d := e.daemon(0)
		e.fault(d, word, "start_server not now")
		e.ensure(s, d)
		e.fault(d, "", "")
		c, err := e.client(d, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: the log lacks %q:\n%s", word, want, &out)
		}
	}
}

// logged keeps the text that goroutines have written.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *logged) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *logged) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// until waits for a status of a daemon.
func (e *env) until(s *Supervisor, d mpsd.Daemon, is func(mpsd.Status) bool) mpsd.Status {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), time.Minute)
	defer cancel()
	for version := ""; ; {
		list := s.list(ctx, version)
		version = list.Version
		for _, status := range list.Daemons {
			if status.Name == d.Name && is(status) {
				return status
			}
		}
		if ctx.Err() != nil {
			e.t.Fatalf("not within a minute: %+v", list)
		}
	}
}

func TestRunOnce_ClientsFault_CountsAndServesAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ stays, hint bool }{"ends": {false, true}, "stays": {true, true}, "no hint": {false, false}} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			s := e.start()
			s.faultLimit = 50 * time.Millisecond
			if !c.stays {
				s.faultLimit = time.Minute
			}
			if !c.hint {
				s.faultPoll = 10 * time.Millisecond
				e.quiet()
			}
			d := e.daemon(0)
			before := e.ensure(s, d)
			one, err := e.client(d, "")
			if err != nil {
				t.Fatal(err)
			}
			defer one.Close()
			other, err := e.client(d, "")
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			if err := one.Fault(); err == nil {
				t.Error("a fault succeeds")
			}
			e.until(s, d, func(now mpsd.Status) bool { return now.Faults == 1 })
			if c.stays {
				// Its processes do not end: the daemon starts again, and a caller waits for that.
				e.ensure(s, d)
				after := e.until(s, d, func(now mpsd.Status) bool { return now.PID != 0 && now.PID != before.PID })
				if after.Restarts != 1 {
					t.Errorf("%+v", after)
				}
			} else {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				if _, err := s.ensure(ctx, d); err == nil || !strings.Contains(err.Error(), "FAULT") {
					t.Errorf("a share starts beside processes that a fault ended: %v", err)
				}
				_, _ = one.Close(), other.Close()
			}
			if after := e.ensure(s, d); after.Faults != 1 || !c.stays && (after.PID != before.PID || after.Problem != "") {
				t.Errorf("%+v", after)
			}
			again, err := e.client(d, "")
			if err != nil {
				t.Fatal(err)
			}
			_ = again.Close()
		})
	}
}

// TestRunOnce_AnswerMissedDuringFault_SharesStartAfterwards has a fault that ended while the daemon did not answer.
func TestRunOnce_AnswerMissedDuringFault_SharesStartAfterwards(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	s.faultPoll, s.faultLimit = 10*time.Millisecond, time.Hour
	d := e.daemon(0)
	e.ensure(s, d)
	of := s.daemons[d.Name]
	of.update(func() { of.faulty, of.status.Problem = true, errFault.Error() })
	e.until(s, d, func(now mpsd.Status) bool { return now.Problem == "" })
	e.ensure(s, d)
}

// quiet makes the daemons print nothing of a fault.
func (e *env) quiet() {
	e.t.Helper()
	if err := os.WriteFile(filepath.Join(e.root.Path, engine.Dir, "mps-fault"), []byte("quiet"), 0o644); err != nil {
		e.t.Fatal(err)
	}
}

func TestSupervisor_SharedMemoryFull_OtherDeviceWorks(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.oldDriver()
	s := e.start()
	full, fine := e.daemon(0), e.daemon(1)
	e.ensure(s, full)
	e.ensure(s, fine)
	filler := filepath.Join(e.o.Dir, full.Name, shmDir, "filler")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("more fits into shared memory than was configured: %v", err)
	}
	if _, err := e.client(full, ""); err == nil || !strings.Contains(err.Error(), "shared memory") {
		t.Errorf("a client without shared memory: %v", err)
	}
	c, err := e.client(fine, "")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if c, err = e.client(full, ""); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

func TestEnsure_NoMPSProgram_ReturnsRemedy(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.o.Root = t.TempDir()
	s := e.start()
	if _, err := s.ensure(t.Context(), mpsd.Daemon{Name: "gpu-0", UUID: "GPU-0"}); err == nil || !strings.Contains(err.Error(), "nvidia-compute-utils") {
		t.Error(err)
	}
}

func FuzzReadNote(f *testing.F) {
	f.Add([]byte(`{"bootID":"b","daemon":{"name":"gpu-0","uuid":"GPU-0"},"pid":7,"started":"9"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, noteFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := readNote(dir); err == nil {
			_ = n.Daemon.Validate()
		}
	})
}

// TestMain_Killed_LeavesNothing is last, when the simulator is built.
func TestMain_Killed_LeavesNothing(t *testing.T) {
	boxtest.CheckKilled(t, func() {
		e := newEnv(t)
		e.ensure(e.start(), e.daemon(0))
	})
}
