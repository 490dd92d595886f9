// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/e2e/env"
)

// bench is the fake kubelet with its state.
type bench struct {
	options
	stage *env.Env
	log   io.Writer
	rows  []table.Row

	dir    string
	http   string // the plugin's address for metrics and profiles
	plugin *exec.Cmd
	mps    *exec.Cmd
	conn   *grpc.ClientConn
	dra    drapb.DRAPluginClient
	node   string
	pods   pods
}

// start starts the shipped binary and waits for its eight GPUs in the API server.
func (b *bench) start(ctx context.Context) error {
	nodes, err := b.stage.Kubectl(ctx, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		return err
	}
	b.node = strings.TrimSpace(nodes)
	b.dir = filepath.Join(b.stage.Dir, "bench")
	if err := b.stage.PluginDirectories(b.dir); err != nil {
		return err
	}
	logFile, err := os.Create(filepath.Join(b.dir, "plugin.log"))
	if err != nil {
		return err
	}
	defer logFile.Close()
	binary := filepath.Join(b.stage.Tree, "bin", "dra-kubelet-plugin")
	if err := errors.Join(b.startSupervisor(), b.servePodResources()); err != nil {
		return err
	}
	if b.http, err = freeAddress(); err != nil {
		return err
	}
	b.plugin = exec.Command(binary, append(b.stage.PluginArguments(b.dir, b.node), "--mps-dir="+b.mpsDir(),
		"--kubelet-pod-resources-directory-path="+b.dir, "--http-endpoint="+b.http, "--pprof-path=/debug/pprof")...)
	b.plugin.Stdout, b.plugin.Stderr = logFile, logFile
	b.plugin.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := b.plugin.Start(); err != nil {
		return fmt.Errorf("start %s: %w", binary, err)
	}
	if err := b.stage.WaitPublished(ctx, 8); err != nil {
		text, _ := os.ReadFile(logFile.Name())
		return fmt.Errorf("%w\n%s", err, text)
	}
	took := time.Since(began)
	b.rows = append(b.rows, table.Plain("start to published", table.Millis(took), "600 ms", took > 600*time.Millisecond))
	info, err := os.Stat(binary)
	if err != nil {
		return err
	}
	size := float64(info.Size()) / 1e6
	b.rows = append(b.rows, table.Plain("stripped binary", fmt.Sprintf("%.1f MB", size), "50 MB", size > 50))
	b.conn, err = grpc.NewClient("unix://"+filepath.Join(b.dir, "plugins", env.Driver, "dra.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	b.dra = drapb.NewDRAPluginClient(b.conn)
	_, err = b.dra.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}, grpc.WaitForReady(true))
	return err
}

// freeAddress returns a local address on which no process listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (b *bench) close() {
	if b.conn != nil {
		_ = b.conn.Close()
	}
	if b.plugin != nil && b.plugin.Process != nil {
		_ = b.plugin.Process.Signal(syscall.SIGTERM)
		_ = b.plugin.Wait()
	}
	b.closeSupervisor()
}

// prepare prepares one claim as the kubelet does.
func (b *bench) prepare(ctx context.Context, c *drapb.Claim) error {
	answer, err := b.dra.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err != nil {
		return err
	}
	one := answer.Claims[c.Uid]
	if one == nil {
		return errors.New("no answer for the claim")
	}
	if one.Error != "" {
		return errors.New(one.Error)
	}
	b.pods.set(c, one.Devices)
	return nil
}

func (b *bench) unprepare(ctx context.Context, c *drapb.Claim) error {
	answer, err := b.dra.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err != nil {
		return err
	}
	if one := answer.Claims[c.Uid]; one != nil && one.Error != "" {
		return errors.New(one.Error)
	}
	b.pods.set(c, nil)
	return nil
}
