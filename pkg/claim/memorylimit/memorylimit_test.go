// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package memorylimit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/memorylimit"
	"gpu-dra-driver/internal/memorylimit/requests"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// env is a node with a simulated machine, and directories in place of cgroups.
type env struct {
	*testing.T
	machine *engine.Engine
	calls   nvmltest.Calls
	cgroups string
	host    *host.Host
	dir     string

	mu      sync.Mutex
	reports []string
	stop    func()
}

func newEnv(t *testing.T) *env {
	e := &env{T: t, machine: simtest.MachineInMemory(t, "hgx-h100", 0), cgroups: t.TempDir(), host: host.New(host.Options{}), dir: filepath.Join(t.TempDir(), "limits")}
	simtest.Change(t, e.machine, func(s *engine.State) { s.Profile.Driver.CUDA = engine.MemoryLimits })
	t.Cleanup(func() { e.calls.Clear() })
	return e
}

// limiter returns that of a plugin.
func (e *env) limiter() *Limiter {
	e.Helper()
	files := requests.New(e.host, e.dir)
	if err := files.Make(); err != nil {
		e.Fatal(err)
	}
	sessions := sessionpool.New(nvmlfake.WithHook(e.machine, e.calls.Do), func(string) bool { return true }, notifytest.Reporter(nil))
	return New(files, sessions, e.cgroups, notifytest.Reporter(func(err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.reports = append(e.reports, err.Error())
	}))
}

// start starts a plugin, which stop ends.
func (e *env) start() {
	e.Helper()
	l := e.limiter()
	ctx, cancel := context.WithCancel(e.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	e.stop = func() {
		cancel()
		<-ended
	}
	e.Cleanup(e.stop)
}

// container is a container's request on a GPU. It makes the container's cgroup.
func (e *env) container(name string, gpu int, share string, bytes uint64) memorylimit.Request {
	e.Helper()
	if err := os.MkdirAll(filepath.Join(e.cgroups, name), 0o755); err != nil {
		e.Fatal(err)
	}
	g := e.state().GPUs[gpu]
	return memorylimit.Request{Claim: "ns/" + share, ClaimUID: share, Device: "gpu", Address: g.Address, UUID: g.UUID, Bytes: bytes, Cgroup: "/" + name}
}

func (e *env) state() (s engine.State) {
	e.Helper()
	simtest.Change(e.T, e.machine, func(now *engine.State) { s = *now })
	return s
}

// ask asks as the hook does, and waits for the answer.
func (e *env) ask(r memorylimit.Request) error {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), time.Minute)
	defer cancel()
	answered, err := requests.Ask(ctx, e.host, e.dir, r)
	if !answered && err == nil {
		e.Fatal("no answer")
	}
	return err
}

// limit returns the limit of a container on a GPU, 0 for none.
func (e *env) limit(name string, gpu int) uint64 {
	e.Helper()
	id, err := engine.CgroupAt(filepath.Join(e.cgroups, name))
	if err != nil {
		e.Fatal(err)
	}
	for _, l := range e.state().GPUs[gpu].Limits {
		if l.Cgroup == id {
			return l.Hard
		}
	}
	return 0
}

const gib = 1 << 30

func TestLimiter_Containers_HaveTheSumOfTheirShares(t *testing.T) {
	e := newEnv(t)
	e.start()
	for _, r := range []memorylimit.Request{
		e.container("a", 0, "a", 4*gib), e.container("a", 0, "b", 2*gib), e.container("a", 1, "c", gib), e.container("b", 0, "a", 4*gib),
	} {
		if err := e.ask(r); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		gpu  int
		want uint64
	}{{"a", 0, 6 * gib}, {"a", 1, gib}, {"b", 0, 4 * gib}, {"b", 1, 0}} {
		if got := e.limit(c.name, c.gpu); got != c.want {
			t.Errorf("container %s on GPU %d: %d, want %d", c.name, c.gpu, got, c.want)
		}
	}
	if err := e.ask(e.container("a", 0, "b", 2*gib)); err != nil || e.limit("a", 0) != 6*gib {
		t.Errorf("a repeated request: %d, %v", e.limit("a", 0), err)
	}
}

// TestLimiter_Restarted_SetsEarlierLimits starts a container while no plugin runs, and loses the limit of another, as in a
// reload of the driver.
func TestLimiter_Restarted_SetsEarlierLimits(t *testing.T) {
	e := newEnv(t)
	e.start()
	if err := e.ask(e.container("a", 0, "a", 4*gib)); err != nil {
		t.Fatal(err)
	}
	e.stop()
	simtest.Change(t, e.machine, func(s *engine.State) { s.GPUs[0].Limits = nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	late := e.container("b", 0, "b", gib)
	if answered, err := requests.Ask(ctx, e.host, e.dir, late); answered || err != nil {
		t.Fatalf("without a plugin: %v, %v", answered, err)
	}
	e.start()
	if err := e.ask(late); err != nil || e.limit("a", 0) != 4*gib || e.limit("b", 0) != gib {
		t.Errorf("%v: %d, %d", err, e.limit("a", 0), e.limit("b", 0))
	}
}

// TestLimiter_RequestUnreadable_LimitStays restarts the plugin while the disk fails under one of two requests of a container.
func TestLimiter_RequestUnreadable_LimitStays(t *testing.T) {
	e := newEnv(t)
	e.start()
	for _, share := range []string{"a", "b"} {
		if err := e.ask(e.container("one", 0, share, 2*gib)); err != nil {
			t.Fatal(err)
		}
	}
	e.stop()
	files, err := filepath.Glob(filepath.Join(e.dir, "*.request"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	e.host = host.New(host.Options{ReadFile: func(path string) ([]byte, error) {
		if path == files[0] {
			return nil, syscall.EIO
		}
		return os.ReadFile(path)
	}})
	e.start()
	if err := e.ask(e.container("two", 0, "c", gib)); err != nil {
		t.Fatal(err)
	}
	if got := e.limit("one", 0); got != 4*gib {
		t.Errorf("the limit is %d", got)
	}
}

func TestLimiter_GPUHangs_OthersAreServed(t *testing.T) {
	e := newEnv(t)
	hung := e.calls.Hang(nvmltest.On(e.state().GPUs[0].UUID))
	e.start()
	first := e.container("a", 0, "a", gib)
	ended := make(chan error, 1)
	go func() {
		_, err := requests.Ask(t.Context(), e.host, e.dir, first)
		ended <- err
	}()
	<-hung
	if err := e.ask(e.container("b", 1, "b", gib)); err != nil || e.limit("b", 1) != gib {
		t.Errorf("another GPU: %d, %v", e.limit("b", 1), err)
	}
	e.calls.Clear()
	if err := <-ended; err != nil || e.limit("a", 0) != gib {
		t.Errorf("afterwards: %d, %v", e.limit("a", 0), err)
	}
}

// TestLimiter_AnyAnswer_RefusesOrSaysSo lets NVML answer each documented code.
func TestLimiter_AnyAnswer_RefusesOrSaysSo(t *testing.T) {
	const query = "nvmlDeviceSetMemoryLimits_v1"
	for _, code := range nvmltest.Codes(t, query) {
		e := newEnv(t)
		e.calls.Answer(code, func(_ int, c nvmltest.Call) bool { return c.Query == query })
		e.start()
		err := e.ask(e.container("a", 0, "a", gib))
		e.stop()
		if none := nvml.Unavailable(code); none != (err == nil) {
			t.Errorf("%v: %v", code, err)
		}
		if len(e.reports) != 1 || !strings.Contains(e.reports[0], "of claim ns/a") || !strings.Contains(e.reports[0], code.Error()) {
			t.Errorf("%v: reported %q", code, e.reports)
		}
		if err != nil && !strings.Contains(err.Error(), "its container does not start") && !strings.Contains(err.Error(), "Its container does not start") {
			t.Errorf("%v: %v says no consequence", code, err)
		}
	}
}

// TestLimiter_AttemptNotLookedAt_IsNotRepeated looks at the requests between the end of an attempt and its result.
func TestLimiter_AttemptNotLookedAt_IsNotRepeated(t *testing.T) {
	e := newEnv(t)
	l := e.limiter()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := requests.Ask(ctx, e.host, e.dir, e.container("a", 0, "a", gib)); err != nil {
		t.Fatal(err)
	}
	l.serve(t.Context())
	<-l.changes // The attempt has ended.
	for _, when := range []string{"before its result", "after it"} {
		asked, err := l.files.List(e.cgroups)
		if again := l.open(asked); err != nil || len(asked) != 1 || len(again) > 0 {
			t.Errorf("%s: asked %+v, to set %+v, %v", when, asked, again, err)
		}
		l.serve(t.Context())
	}
}

func TestLimiter_ContainerEnded_IsForgotten(t *testing.T) {
	e := newEnv(t)
	e.start()
	if err := e.ask(e.container("a", 0, "a", gib)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(e.cgroups, "a")); err != nil {
		t.Fatal(err)
	}
	if err := e.ask(e.container("b", 0, "b", gib)); err != nil {
		t.Fatal(err)
	}
	e.stop()
	names, err := os.ReadDir(e.dir)
	if err != nil || len(names) != 2 || len(e.reports) > 0 {
		t.Errorf("%d files, %v, reports %q", len(names), errors.Join(err), e.reports)
	}
}
