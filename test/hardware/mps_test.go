// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware && cgo

package hardware

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"
)

// clientVerb makes this test's binary run as a CUDA process.
const clientVerb = "GPU_DRA_HARDWARE_CLIENT"

func TestMain(m *testing.M) {
	if most := os.Getenv(clientVerb); most != "" {
		var n int64
		if _, err := fmt.Sscan(most, &n); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		mib, err := allocate(n)
		answer := map[string]any{"mib": mib}
		if err != nil {
			answer["error"] = err.Error()
		}
		_ = json.NewEncoder(os.Stdout).Encode(answer)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestMPS_MemoryLimit_BindsEachClient starts an MPS daemon of its own, in directories of its own, and measures a
// process's allocations under each kind of limit. It changes no setting of the GPU: its compute mode stays.
func TestMPS_MemoryLimit_BindsEachClient(t *testing.T) {
	_, s, ok := machine(t)
	if !ok {
		return
	}
	program, err := exec.LookPath("nvidia-cuda-mps-control")
	if err != nil || *driverRoot != "/" {
		t.Logf("no MPS programs to run here (%v)", err)
		return
	}
	g := s.GPUs[0]
	// A little memory: other processes may be computing.
	const most = 8 << 10
	dir := t.TempDir()
	env := append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(dir, "pipe"), "CUDA_MPS_LOG_DIRECTORY="+filepath.Join(dir, "log"), "CUDA_VISIBLE_DEVICES="+g.UUID)
	for _, name := range []string{"pipe", "log"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	daemon := exec.Command(program, "-f")
	daemon.Env, daemon.SysProcAttr = env, &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = ask(env, program, "quit -t 5")
		_ = syscall.Kill(-daemon.Process.Pid, syscall.SIGKILL)
		_ = daemon.Wait()
	})
	for {
		if _, err := ask(env, program, "get_default_active_thread_percentage"); err == nil {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatal("the MPS daemon does not answer within a minute")
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Printf("GPU %s: MPS daemon answers after %d ms\n", g.PCIAddress, time.Since(began).Milliseconds())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LIMIT\tOF THE DAEMON\tOF THE PROCESS\tA PROCESS HAD\tTOOK")
	for _, c := range []struct {
		name, daemon, client string
		atMost               int64
	}{
		{"none", "", "", most},
		{"the process's own", "", "0=2048M", 2 << 10},
		{"the daemon's", "0 4096M", "", 4 << 10},
		{"the tighter of two", "0 4096M", "0=2048M", 2 << 10},
		{"a process that asks for more than the daemon's", "0 4096M", "0=6144M", 4 << 10},
	} {
		if c.daemon != "" {
			if out, err := ask(env, program, "set_default_device_pinned_mem_limit "+c.daemon); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			// The default is for future servers.
			if list, err := ask(env, program, "get_server_list"); err == nil {
				for _, pid := range strings.Fields(list) {
					_, _ = ask(env, program, "set_device_pinned_mem_limit "+pid+" "+c.daemon)
				}
			}
		}
		began := time.Now()
		had, err := client(t.Context(), env, c.client, most)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d MiB\t%d ms\n", c.name, c.daemon, c.client, had, time.Since(began).Milliseconds())
		if had > c.atMost {
			t.Errorf("%s: a process had %d MiB, want %d at the most", c.name, had, c.atMost)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}

func ask(env []string, program, command string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env, cmd.Stdin = env, strings.NewReader(command+"\n")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// client runs a CUDA process and returns its allocated MiB.
func client(ctx context.Context, env []string, limit string, most int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(append([]string(nil), env...), fmt.Sprintf("%s=%d", clientVerb, most))
	// The daemon has the UUID; its clients see the device as number 0.
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES=0")
	if limit != "" {
		cmd.Env = append(cmd.Env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+limit)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, out.String())
	}
	var answer struct {
		MiB   int64  `json:"mib"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		return 0, fmt.Errorf("it said %q", out.String())
	}
	if answer.Error != "" {
		return 0, fmt.Errorf("it cannot use the GPU: %s", answer.Error)
	}
	return answer.MiB, nil
}
