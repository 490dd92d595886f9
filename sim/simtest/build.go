// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package simtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

var built struct {
	once sync.Once
	err  error
}

// builtBefore has the directory for the processes that a test starts: they need not build the same again.
const builtBefore = "SIMTEST_BUILT"

// withBinaries calls use with the simulator's built library and nvidia-smi. They are in the module's bin/sim, where
// the go command keeps them while they are up to date. A lock excludes other test binaries.
func withBinaries(use func(library, smi string) error) error {
	mod, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "gpu-dra-driver").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	module := strings.TrimSpace(string(mod))
	dir := filepath.Join(module, "bin", "sim")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDONLY|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	built.once.Do(func() {
		if os.Getenv(builtBefore) == dir {
			return
		}
		if built.err = build(module, dir); built.err == nil {
			built.err = os.Setenv(builtBefore, dir)
		}
	})
	if built.err != nil {
		return built.err
	}
	return use(filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "nvidia-smi"))
}

func build(module, dir string) error {
	for _, b := range []struct {
		env  string
		args []string
	}{
		{"CGO_ENABLED=1", []string{"-buildmode=c-shared", "-ldflags", "-s -w -extldflags=-Wl,-soname,libnvidia-ml.so.1",
			"-o", filepath.Join(dir, "libnvidia-ml.so.1"), "gpu-dra-driver/sim/libnvidiaml"}},
		{"CGO_ENABLED=0", []string{"-ldflags", "-s -w", "-o", filepath.Join(dir, "nvidia-smi"), "gpu-dra-driver/sim/cmd/nvidia-smi"}},
	} {
		cmd := exec.Command("go", append([]string{"build"}, b.args...)...)
		cmd.Dir, cmd.Env = module, append(os.Environ(), b.env)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	}
	return nil
}
