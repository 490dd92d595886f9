// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

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

	"gpu-dra-driver/internal/driverprogram"
)

const (
	// loadLimit limits the run of one program that loads a module, loadPause is the pause after attempts that failed.
	loadLimit = 8 * time.Second
	loadPause = 30 * time.Second
)

// Loader loads the kernel module nvidia_uvm, which CUDA needs. A driver without nvidia-persistenced or
// nvidia-cdi-refresh loads it at its first use as root, and containers never do. It never unloads a module. It is safe
// for concurrent use.
type Loader struct {
	// Root is the driver root, ProcRoot the machine's /proc.
	Root, ProcRoot string

	mu sync.Mutex
	// done is closed after the running attempt. ended is the time of the last one, and err its error.
	done  chan struct{}
	ended time.Time
	err   error
}

// Load loads the module if the driver is loaded and the module is not. A program that loads a module can hang in the
// kernel: Load returns after the context's end or the time limits, and starts no second one meanwhile.
func (l *Loader) Load(ctx context.Context) error {
	if l.loaded() {
		return nil
	}
	l.mu.Lock()
	if l.done == nil {
		if l.err != nil && time.Since(l.ended) < loadPause {
			defer l.mu.Unlock()
			return l.err
		}
		l.done = make(chan struct{})
		go l.attempt(l.done)
	}
	done := l.done
	l.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("load the kernel module nvidia-uvm: %w", context.Cause(ctx))
	case <-time.After(3 * loadLimit):
		return errors.New("load the kernel module nvidia-uvm: modprobe hangs; read the node's kernel log, and reboot " +
			"the node if it stays")
	}
	if l.loaded() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// loaded reports whether the module is loaded, or cannot be because the driver is not.
func (l *Loader) loaded() bool {
	data, err := os.ReadFile(filepath.Join(l.ProcRoot, "devices"))
	if err != nil {
		return true // Its reader reports the error.
	}
	driver := false
	for _, name := range frontend {
		_, ok := parseMajor(data, name)
		driver = driver || ok
	}
	_, ok := parseMajor(data, uvm[0])
	return ok || !driver
}

func (l *Loader) attempt(done chan struct{}) {
	node := filepath.Join(l.ProcRoot, "1/root")
	var tried []string
	for _, try := range []struct {
		root, name string
		args       []string
	}{
		{l.Root, "nvidia-modprobe", []string{"-u", "-c0"}}, {l.Root, "modprobe", []string{"nvidia-uvm"}},
		{node, "modprobe", []string{"nvidia-uvm"}},
	} {
		program, err := driverprogram.Find(try.root, try.name, "")
		if err != nil || program.Root == "" && try.name == "modprobe" {
			continue // It finds modules below its own root only.
		}
		out, err := load(program, try.args)
		if l.loaded() {
			break
		}
		tried = append(tried, strings.TrimSpace(fmt.Sprintf("%s %s in %s: %v %s", try.name, strings.Join(try.args, " "),
			try.root, err, out)))
	}
	if len(tried) == 0 {
		tried = []string{"neither the driver root nor the node has nvidia-modprobe or modprobe"}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err, l.ended, l.done = nil, time.Now(), nil
	if !l.loaded() {
		l.err = fmt.Errorf("load the kernel module nvidia-uvm: %s; run on the node, as root: modprobe nvidia-uvm",
			strings.Join(tried, "; "))
	}
	close(done)
}

func load(program driverprogram.Program, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), loadLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program.Path, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", program.Environ(), time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: strings.TrimSuffix(program.Root, "/")}
	var out driverprogram.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := strings.Join(strings.Fields(out.String()), " ")
	return text[:min(len(text), 200)], err
}
