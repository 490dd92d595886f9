// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gpu-dra-driver/test/fleetserver"
)

// Addresses of the controller in its own network namespace.
const (
	webhookPort = 9443
	metricsAt   = "127.0.0.1:8080"
	profilesAt  = "127.0.0.1:6060"
	namespace   = "gpu-dra-driver"
	secret      = "webhook-cert"
)

// process is a running controller.
type process struct {
	cmd   *exec.Cmd
	log   bytes.Buffer
	ended chan error
	began time.Time
}

// startController starts the shipped binary against a server. Its files are in the directory.
func startController(binary, dir string, s *fleetserver.Server) (*process, error) {
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(s.Kubeconfig()), 0o600); err != nil {
		return nil, err
	}
	p := &process{ended: make(chan error, 1)}
	p.cmd = exec.Command(binary, "--kubeconfig="+kubeconfig, "--pod-namespace="+namespace,
		"--webhook-service=webhook", "--webhook-configuration=webhook", "--cert-secret="+secret,
		"--rotate-certs=false", fmt.Sprintf("--webhook-port=%d", webhookPort), "--http-endpoint="+metricsAt, "--pprof-endpoint="+profilesAt, "-v=0")
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	return p, nil
}

// stop ends it and waits.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // It may have ended.
	select {
	case err := <-p.ended:
		if err != nil {
			return fmt.Errorf("the controller: %w\n%s", err, p.log.String())
		}
		return nil
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		return errors.Join(errors.New("the controller did not end in 20 s"), <-p.ended)
	}
}

// memory returns a line of the process's status, in MB of 10^6 bytes.
func (p *process) memory(line string) (float64, error) {
	path := filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "status")
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(l, line+":"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kb * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("no %s in %s", line, path)
}

// cpu returns the CPU time of a process. The kernel counts it in hundredths of a second.
func cpu(pid string) (time.Duration, error) {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("read the time that process %s has spent: the line is too short", pid)
	}
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, err
}

// both returns the CPU times of controller and server.
func (p *process) both() (controller, server time.Duration, err error) {
	controller, err = cpu(strconv.Itoa(p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	server, err = cpu("self")
	return controller, server, err
}

// fetch sends a GET request to one of the controller's servers.
func fetch(ctx context.Context, address, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", path, response.Status)
	}
	return data, err
}

// profile stores one of Go's profiles, if profiles are enabled.
func (b *bench) profile(ctx context.Context, path, name string) error {
	if b.profiles == "" {
		return nil
	}
	data, err := fetch(ctx, profilesAt, "/debug/pprof/"+path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.profiles, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.profiles, name), data, 0o644)
}

// profileDuring takes a profile of five seconds, once the controller answers. It returns a function that waits for
// it.
func (b *bench) profileDuring(ctx context.Context, name string) (done func()) {
	if b.profiles == "" {
		return func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for b.profile(ctx, "profile?seconds=5", "cpu-"+name) != nil && wait(ctx, 20*time.Millisecond) == nil {
		}
	}()
	return func() { <-ended }
}
