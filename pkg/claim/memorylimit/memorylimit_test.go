// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package memorylimit

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
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

	// interval replaces the limiter's. Default: its own.
	interval time.Duration

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
	l := New(files, sessions, e.cgroups, notifytest.Reporter(func(err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.reports = append(e.reports, err.Error())
	}))
	l.interval = cmp.Or(e.interval, l.interval)
	return l
}

// said returns the number of reports.
func (e *env) said() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.reports)
}

// eventually waits until a condition holds.
func (e *env) eventually(what string, ok func() bool) {
	e.Helper()
	for late := time.After(30 * time.Second); !ok(); {
		select {
		case <-late:
			e.Fatalf("not within 30 s: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// start starts a plugin, which stop ends.
func (e *env) start() (l *Limiter) {
	e.Helper()
	l = e.limiter()
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
	return l
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

// TestLimiter_EqualSharesOfAClaim_AddUp has a container with two shares of one size, by two requests of a claim.
func TestLimiter_EqualSharesOfAClaim_AddUp(t *testing.T) {
	e := newEnv(t)
	e.start()
	for _, share := range []string{"s-1", "s-2"} {
		r := e.container("a", 0, "a", 4*gib)
		r.Share = share
		if err := e.ask(r); err != nil {
			t.Fatal(err)
		}
	}
	if got := e.limit("a", 0); got != 8*gib {
		t.Errorf("the limit is %d GiB, want 8", got/gib)
	}
}

// TestLimiter_ContainersOfAClaim_GuaranteeNoMoreThanTheClaim starts three containers of a claim.
func TestLimiter_ContainersOfAClaim_GuaranteeNoMoreThanTheClaim(t *testing.T) {
	e := newEnv(t)
	e.start()
	for _, name := range []string{"a", "b", "c"} {
		if err := e.ask(e.container(name, 0, "one", 30*gib)); err != nil {
			t.Fatal(err)
		}
	}
	var guaranteed uint64
	for _, l := range e.state().GPUs[0].Limits {
		guaranteed += l.Soft
	}
	if guaranteed > 30*gib {
		t.Errorf("%d GiB are guaranteed to the containers of a claim of 30 GiB", guaranteed/gib)
	}
}

// locker has one claim with a share of the GPU.
type locker struct{ limit uint64 }

func (l locker) WithGPULock(_ context.Context, address string, do func([]plan.Plan) error) error {
	return do([]plan.Plan{{Devices: []plan.Device{{PCIAddress: address, Sharing: plan.Sharing{ContainerLimit: l.limit}}}}})
}

// TestLimiter_GPULosesLimits_SetAgain loses a limit as in a reload of the driver, which no request follows.
func TestLimiter_GPULosesLimits_SetAgain(t *testing.T) {
	for _, needed := range []bool{true, false} {
		e := newEnv(t)
		l := e.start()
		scans := inventory.NewLatest()
		s, other := gpu.Snapshot{}, e.container("other", 1, "b", gib)
		for _, g := range e.state().GPUs {
			s.GPUs = append(s.GPUs, gpu.GPU{PCIAddress: g.Address, UUID: g.UUID})
		}
		scans.Set(s)
		for _, r := range []memorylimit.Request{e.container("a", 0, "a", 4*gib), other} {
			if err := e.ask(r); err != nil {
				t.Fatal(err)
			}
		}
		simtest.Change(t, e.machine, func(s *engine.State) { s.GPUs[0].Limits, s.GPUs[1].Limits = nil, nil })
		limit := uint64(0)
		if needed {
			limit = 4 * gib
		}
		settings := executor.NewSettings(e.host, locker{limit}, scans, l.Setting())
		if errs := settings.Reconcile(t.Context()); len(errs) > 0 {
			t.Fatal(errs)
		}
		if needed {
			e.eventually("the limits are set again", func() bool { return e.limit("a", 0) == 4*gib && e.limit("other", 1) == gib })
		} else if err := e.ask(e.container("later", 2, "c", gib)); err != nil || e.limit("a", 0) > 0 {
			t.Errorf("no claim needs a limit: %d, %v", e.limit("a", 0), err)
		}
		if e.said() > 0 {
			t.Errorf("reports %q", e.reports)
		}
	}
}

// TestLimiter_LostDuringAnAttempt_SetAgain has a GPU lose a limit while it is set.
func TestLimiter_LostDuringAnAttempt_SetAgain(t *testing.T) {
	e := newEnv(t)
	l := e.limiter()
	asked := []memorylimit.Request{e.container("a", 0, "a", gib)}
	address := asked[0].Address
	first := l.open(asked)[address].limits[0]
	l.finish(t.Context(), first, nil)
	lost := func() {
		if err := l.Keep(t.Context(), gpu.GPU{PCIAddress: address}); err != nil {
			t.Fatal(err)
		}
	}
	lost()
	again := l.open(asked)[address].limits
	if len(again) != 1 {
		t.Fatalf("a lost limit is set again %d times", len(again))
	}
	lost()
	l.finish(t.Context(), again[0], nil)
	last := l.open(asked)[address].limits
	if len(last) != 1 {
		t.Fatal("a limit that is lost during an attempt stays lost")
	}
	l.finish(t.Context(), last[0], nil)
	if more := l.open(asked); len(more) > 0 {
		t.Errorf("limits that are set are set again: %v", more)
	}
}

// TestLimiter_SetFails_IsTriedAgain lets the driver refuse a limit for a while. It is reported once.
func TestLimiter_SetFails_IsTriedAgain(t *testing.T) {
	const query = "nvmlDeviceSetMemoryLimits_v1"
	e := newEnv(t)
	e.interval = time.Millisecond
	var tried atomic.Int32
	e.calls.Answer(nvml.Unknown, func(_ int, c nvmltest.Call) bool {
		if c.Query == query {
			tried.Add(1)
		}
		return c.Query == query
	})
	e.start()
	r := e.container("a", 0, "a", gib)
	if err := e.ask(r); err == nil {
		t.Fatal("a limit that is not set is answered as set")
	}
	e.eventually("the limit is tried again", func() bool { return tried.Load() > 3 })
	e.calls.Clear()
	e.eventually("the limit is set", func() bool { return e.limit("a", 0) == gib })
	e.eventually("it is answered", func() bool { return e.ask(r) == nil })
	if e.said() != 1 {
		t.Errorf("reports %q", e.reports)
	}
}

// TestLimiter_DirectoryDeleted_IsMadeAndWatchedAgain deletes the directory while the plugin runs: without it no container
// with a share starts. The next scan is half a minute away.
func TestLimiter_DirectoryDeleted_IsMadeAndWatchedAgain(t *testing.T) {
	e := newEnv(t)
	e.start()
	for _, name := range []string{"a", "b"} {
		if err := e.ask(e.container(name, 0, "a", gib)); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(e.dir); err != nil {
			t.Fatal(err)
		}
		e.eventually("the directory is there again", func() bool {
			_, err := os.Lstat(e.dir)
			return err == nil
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), scanInterval/2)
	defer cancel()
	if answered, err := requests.Ask(ctx, e.host, e.dir, e.container("c", 0, "c", gib)); !answered || err != nil {
		t.Errorf("answered %v, %v", answered, err)
	}
}

// TestLimiter_NoWatcher_DirectoryIsMade looks at requests without a file descriptor for a watcher, and then with one.
func TestLimiter_NoWatcher_DirectoryIsMade(t *testing.T) {
	e := newEnv(t)
	l := e.limiter()
	if err := os.RemoveAll(e.dir); err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l.watch(t.Context())
	}
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	if _, missing := os.Lstat(e.dir); err != nil || missing != nil {
		t.Fatal(err, missing)
	}
	if e.said() == 0 || e.said() > 2 { // The directory's sync fails first, and then the watcher.
		t.Errorf("reports %q", e.reports)
	}
	l.watch(t.Context())
	defer l.watcher.Close()
	if len(l.watcher.WatchList()) != 1 {
		t.Errorf("watches %q", l.watcher.WatchList())
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
