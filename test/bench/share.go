// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/bench/table"
)

func (b *bench) mpsDir() string { return filepath.Join(b.dir, "mps") }

// startSupervisor starts the shipped supervisor of MPS daemons.
func (b *bench) startSupervisor() error {
	log, err := os.Create(filepath.Join(b.dir, "mps.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	b.mps = exec.Command(filepath.Join(b.stage.Tree, "bin", "mps-supervisor"), "--mps-dir="+b.mpsDir(), "--driver-root="+b.stage.Root,
		"--boot-id-file="+filepath.Join(b.stage.Root, "proc/sys/kernel/random/boot_id"))
	b.mps.Stdout, b.mps.Stderr = log, log
	b.mps.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return b.mps.Start()
}

// closeSupervisor ends the daemons of an interrupted run, and then the supervisor.
func (b *bench) closeSupervisor() {
	if b.mps == nil || b.mps.Process == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client := mpsd.NewClient(filepath.Join(b.mpsDir(), mpsd.SocketName))
	if list, err := client.List(ctx, ""); err == nil {
		for _, d := range list.Daemons {
			_ = client.Stop(ctx, d.Name)
		}
	}
	_ = b.mps.Process.Signal(syscall.SIGTERM)
	_ = b.mps.Wait()
}

// fault sets the fault of the simulated MPS; empty: none.
func (b *bench) fault(text string) error {
	path := filepath.Join(b.stage.Root, engine.Dir, "mps-fault")
	if text == "" {
		return os.Remove(path)
	}
	return os.WriteFile(path, []byte(text+"\n"), 0o644)
}

// shares creates claims for a GiB each of a GPU.
func (b *bench) shares(ctx context.Context, gpu, count int) ([]*drapb.Claim, error) {
	names, err := b.names(ctx)
	if err != nil {
		return nil, err
	}
	devices := make([]string, count)
	for i := range devices {
		devices[i] = names[gpu]
	}
	return b.stage.AllocatedShares(ctx, b.node+"/gpu", devices, "1Gi")
}

// firstShare compares the Prepare of a GPU's first share with the daemon's own start, on hardware about a second.
func (b *bench) firstShare(ctx context.Context) error {
	claims, err := b.shares(ctx, 0, 1)
	if err != nil {
		return err
	}
	if err := b.fault("slow all 800ms"); err != nil {
		return err
	}
	defer func() { _ = b.fault("") }()
	var pairs []table.Pair
	for range 7 {
		own, err := b.ownStart(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := b.prepare(ctx, claims[0]); err != nil {
			return err
		}
		pairs = append(pairs, table.Pair{Figure: time.Since(began), Floor: own})
		if err := b.unprepare(ctx, claims[0]); err != nil {
			return err
		}
	}
	b.ratio("first share, p50, over the daemon's own start", table.Quantile(table.Figures(pairs), 0.5), table.Quantile(table.Floors(pairs), 0.5), 1.2)
	return b.keep("first-share", pairs)
}

// ownStart measures the time from a daemon's start to its first answer.
func (b *bench) ownStart(ctx context.Context) (time.Duration, error) {
	dir, err := os.MkdirTemp(b.dir, "own")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(b.stage.Root, "usr/bin/nvidia-cuda-mps-control")
	env := append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+dir, "CUDA_MPS_LOG_DIRECTORY="+dir, "CUDA_VISIBLE_DEVICES=1")
	daemon := exec.CommandContext(ctx, program, "-f")
	daemon.Env = env
	began := time.Now()
	if err := daemon.Start(); err != nil {
		return 0, err
	}
	for {
		ask := exec.CommandContext(ctx, program)
		ask.Env, ask.Stdin = env, strings.NewReader("get_default_active_thread_percentage\n")
		if ask.Run() == nil {
			break
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	took := time.Since(began)
	return took, errors.Join(daemon.Process.Signal(syscall.SIGTERM), daemon.Wait())
}

// furtherShares compares the Prepare of a share with a running daemon and that of a whole GPU.
func (b *bench) furtherShares(ctx context.Context) error {
	claims, err := b.shares(ctx, 0, 2)
	if err != nil {
		return err
	}
	names, err := b.names(ctx)
	if err != nil {
		return err
	}
	whole, err := b.claims(ctx, names[1:2], false)
	if err != nil {
		return err
	}
	if err := b.prepare(ctx, claims[0]); err != nil {
		return err
	}
	pairs, err := b.inTurn(ctx, claims[1], whole[0], max(1, b.samples/2))
	if err != nil {
		return err
	}
	b.ratio("further share, p50, over a whole GPU", table.Quantile(table.Figures(pairs), 0.5), table.Quantile(table.Floors(pairs), 0.5), 2)
	return errors.Join(b.unprepare(ctx, claims[0]), b.keep("further-share", pairs))
}

// manyShares prepares as many shares of one GPU as MPS has clients, concurrently, and measures the supervisor's
// memory.
func (b *bench) manyShares(ctx context.Context) error {
	const count, budget = 48, 500 * time.Millisecond
	claims, err := b.shares(ctx, 0, count)
	if err != nil {
		return err
	}
	errs := make([]error, count)
	began := time.Now()
	var group sync.WaitGroup
	for i, c := range claims {
		group.Go(func() { errs[i] = b.prepare(ctx, c) })
	}
	group.Wait()
	took := time.Since(began)
	rss, rssErr := memoryOf(b.mps.Process.Pid)
	for i, c := range claims {
		errs[i] = errors.Join(errs[i], b.unprepare(ctx, c))
	}
	b.rows = append(b.rows, table.Plain("48 shares of one GPU at once", table.Millis(took), table.Millis(budget), took > budget),
		table.Plain("memory of the supervisor", fmt.Sprintf("%.1f MB", rss), "15 MB", rss > 15))
	return errors.Join(append(errs, rssErr)...)
}

// besideStuck compares Prepare of another GPU with and without a hanging daemon.
func (b *bench) besideStuck(ctx context.Context) error {
	names, err := b.names(ctx)
	if err != nil {
		return err
	}
	whole, err := b.claims(ctx, names[2:3], false)
	if err != nil {
		return err
	}
	claims, err := b.shares(ctx, 1, 1)
	if err != nil {
		return err
	}
	n := max(1, b.samples)
	calm, err := b.sample(ctx, whole[0], n)
	if err != nil {
		return err
	}
	if err := b.fault("hang"); err != nil {
		return err
	}
	stuck, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.prepare(stuck, claims[0]) // It fails after its timeout.
	}()
	beside, err := b.sample(ctx, whole[0], n)
	cancel()
	<-done
	if err := errors.Join(err, b.fault("")); err != nil {
		return err
	}
	b.ratio("prepare beside a daemon that hangs, p99, over none", table.Quantile(table.Figures(beside), 0.99), table.Quantile(table.Figures(calm), 0.99), 1.2)
	return errors.Join(b.unprepare(ctx, claims[0]), b.keep("beside-stuck", beside))
}

// memoryOf returns the resident set of a process, in MB.
func memoryOf(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb := 0
			_, err := fmt.Sscan(value, &kb)
			return float64(kb) * 1024 / 1e6, err
		}
	}
	return 0, errors.New("no VmRSS in /proc/PID/status")
}
