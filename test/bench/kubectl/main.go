// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl measures the kubectl plugin with a cluster of thousands of nodes: time, memory and requests of a
// command.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/fleetserver"
)

// claim asks for more GPUs than a node has, so every shape of nodes is judged.
const claim = `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: asked, namespace: default}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 9}}]}}
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("kubectl", flag.ContinueOnError)
	nodes := flags.Int("nodes", 5000, "nodes of eight GPUs; one of five has H100, the others V100")
	binary := flags.String("plugin", "bin/kubectl-gpu", "the kubectl plugin")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s, err := fleetserver.New()
	if err != nil {
		return err
	}
	for node := range *nodes {
		profile := "dgx-1-v100"
		if node%5 == 0 {
			profile = "hgx-h100"
		}
		if err := s.AddNode(node, profile); err != nil {
			return err
		}
	}
	s.Add("deviceclasses", &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
		}}},
	}})
	if err := s.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	dir, err := os.MkdirTemp("", "bench-kubectl-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	kubeconfig, manifest := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "claim.yaml")
	for path, text := range map[string]string{kubeconfig: s.Kubeconfig(), manifest: claim} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	var rows []table.Row
	for _, command := range [][]string{{"ls"}, {"why", "-f", manifest}} {
		before := s.Requests()
		cmd := exec.CommandContext(ctx, *binary, append(command, "--kubeconfig="+kubeconfig, "--request-timeout=5m")...)
		cmd.Stderr = os.Stderr
		began := time.Now()
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("kubectl gpu %s: %w", command[0], err)
		}
		took, cpu := time.Since(began), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
		usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		if !ok {
			return errors.New("this system does not report the memory of a process")
		}
		name := fmt.Sprintf("kubectl gpu %s, %d nodes: ", command[0], *nodes)
		rows = append(rows,
			table.Plain(name+"time", fmt.Sprintf("%.1f s", took.Seconds()), "-", false),
			table.Plain(name+"CPU", fmt.Sprintf("%.1f s", cpu.Seconds()), "-", false),
			table.Plain(name+"peak memory", fmt.Sprintf("%d MB", usage.Maxrss>>10), "-", false),
			table.Plain(name+"API requests", fmt.Sprint(s.Requests()-before), "-", false))
	}
	_, err = table.Print(out, rows)
	return err
}
