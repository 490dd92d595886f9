// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpu-dra-driver/internal/mpsd"
)

// Kubelet calls a plugin in place of the kubelet.
type Kubelet struct {
	dra  drapb.DRAPluginClient
	conn *grpc.ClientConn
}

// Dial waits until the plugin at a socket answers.
func Dial(ctx context.Context, socket string) (*Kubelet, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	k := &Kubelet{drapb.NewDRAPluginClient(conn), conn}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err = k.dra.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}, grpc.WaitForReady(true))
	return k, err
}

func (k *Kubelet) Close() error { return k.conn.Close() }

// callLimit is below the kubelet's own limit.
const callLimit = 20 * time.Second

// Prepare returns the devices of a claim.
func (k *Kubelet) Prepare(ctx context.Context, c *drapb.Claim) ([]*drapb.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	answer, err := k.dra.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err == nil && answer.Claims[c.Uid].Error != "" {
		err = errors.New(answer.Claims[c.Uid].Error)
	}
	if err != nil {
		return nil, err
	}
	return answer.Claims[c.Uid].Devices, nil
}

func (k *Kubelet) Unprepare(ctx context.Context, c *drapb.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	answer, err := k.dra.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err == nil && answer.Claims[c.Uid].Error != "" {
		err = errors.New(answer.Claims[c.Uid].Error)
	}
	return err
}

// StartSupervisor starts a supervisor of MPS daemons for a plugin that runs as a separate process. stop ends its daemons.
func (e *Env) StartSupervisor(binary, mpsDir string, log io.Writer) (client *mpsd.Client, stop func(), err error) {
	cmd := exec.Command(binary, "--mps-dir="+mpsDir, "--driver-root="+e.Root,
		"--boot-id-file="+filepath.Join(e.Root, "proc/sys/kernel/random/boot_id"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // The signal comes when the thread that started the process ends.
		started <- cmd.Start()
		_ = cmd.Wait() // Its signal is an error.
		close(ended)
	}()
	if err := <-started; err != nil {
		return nil, nil, err
	}
	client = mpsd.NewClient(filepath.Join(mpsDir, mpsd.SocketName))
	return client, func() {
		// The test's context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if list, err := client.List(ctx, ""); err == nil {
			for _, d := range list.Daemons {
				_ = client.Stop(ctx, d.Name)
			}
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	}, nil
}
