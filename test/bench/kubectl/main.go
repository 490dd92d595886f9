// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl measures the kubectl plugin with a cluster of thousands of nodes, half of whose GPUs are allocated:
// processor time, memory and requests of a command. Their floor is a program that only lists the ResourceSlices and
// claims in pages of protobuf. It also measures the first paint, an update and a key of
// the live screen.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/command"
	"gpu-dra-driver/test/fleetserver"
)

// claim asks for more GPUs than a node has, so every shape of nodes is judged.
const claim = `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: asked, namespace: default}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 9}}]}}
`

func main() { command.Main("bench", run) }

func run(ctx context.Context, args []string, out, _ io.Writer) (err error) {
	flags := flag.NewFlagSet("kubectl", flag.ContinueOnError)
	nodes := flags.Int("nodes", 5000, "nodes of eight GPUs; one of five has H100, the others V100")
	binary := flags.String("plugin", "bin/kubectl-gpu", "the kubectl plugin")
	only := flags.String("list", "", "run as the floor, with this kubeconfig")
	measured := flags.Bool("measured", false, "run the program of the arguments, and write its usage to file descriptor 3")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *only != "" {
		return list(ctx, *only)
	}
	if *measured {
		return runMeasured(ctx, flags.Args(), os.NewFile(3, "usage"))
	}
	s, err := fleetserver.New()
	if err != nil {
		return err
	}
	byBoard, byPod := map[string]string{}, map[string]string{}
	for _, profile := range []string{common, rare} {
		if byBoard[profile], err = metrics(profile); err != nil {
			return err
		}
	}
	for node := range *nodes {
		profile := common
		if node%5 == 0 {
			profile = rare
		}
		if err := s.AddNode(node, profile); err != nil {
			return err
		}
		addPlugin(s, fleetserver.NodeName(node))
		byPod["plugin-"+fleetserver.NodeName(node)] = byBoard[profile]
		if node%2 == 0 {
			if err := allocate(s, node, profile); err != nil {
				return err
			}
		}
	}
	s.Metrics = serveMetrics(byPod)
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
	floor, err := measure(ctx, s, os.Args[0], "-list", kubeconfig)
	if err != nil {
		return err
	}
	var rows []table.Row
	for _, command := range [][]string{{"ls"}, {"why", "-f", manifest}, {"slices", "-o", "json"}} {
		c, err := measure(ctx, s, *binary, append(command, "--kubeconfig="+kubeconfig, "--request-timeout=5m")...)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("kubectl gpu %s, %d nodes: ", command[0], *nodes)
		rows = append(rows,
			table.Plain(name+"time", fmt.Sprintf("%.1f s", c.time.Seconds()), "-", false),
			row(name+"CPU", "%.1f s", c.cpu.Seconds(), floor.cpu.Seconds(), mostCPU[command[0]]),
			row(name+"peak memory", "%.0f MB", c.megabytes, floor.megabytes, mostMemory),
			row(name+"API requests", "%.0f", c.requests, floor.requests, mostRequests))
	}
	live, err := watch(ctx, *binary, kubeconfig)
	if err != nil {
		return err
	}
	for _, r := range live {
		r.Figure = fmt.Sprintf("kubectl gpu top -w, %d nodes: %s", *nodes, r.Figure)
		rows = append(rows, r)
	}
	return table.Report(out, rows, "", true)
}

// The boards of four nodes of five, and of the fifth.
const common, rare = "dgx-1-v100", "hgx-h100"

// The budgets are multiples of the floor.
const (
	mostMemory   = 0.15
	mostRequests = 1.5
)

// mostCPU is the budget of each command. Only slices decodes and prints every device.
var mostCPU = map[string]float64{"ls": 0.3, "why": 0.3, "slices": 10}

type cost struct {
	time, cpu           time.Duration
	megabytes, requests float64
}

// usage is a program's processor time and largest resident set.
type usage struct {
	CPU time.Duration
	KiB int64
}

// measure runs a program to its end. Linux counts the memory of a program from before exec too, that of its parent, so
// the parent is a small one.
func measure(ctx context.Context, s *fleetserver.Server, program string, args ...string) (cost, error) {
	before, began := s.Requests(), time.Now()
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{"-measured", program}, args...)...)
	cmd.Stderr = os.Stderr
	in, out, err := os.Pipe()
	if err != nil {
		return cost{}, err
	}
	defer func() { _ = in.Close() }() // It was only read.
	cmd.ExtraFiles = []*os.File{out}
	err = errors.Join(cmd.Run(), out.Close())
	if err != nil {
		return cost{}, fmt.Errorf("%s %s: %w", filepath.Base(program), args[0], err)
	}
	took := time.Since(began)
	var u usage
	if err := json.NewDecoder(in).Decode(&u); err != nil {
		return cost{}, fmt.Errorf("read the usage of %s: %w", filepath.Base(program), err)
	}
	return cost{time: took, cpu: u.CPU, megabytes: float64(u.KiB >> 10), requests: float64(s.Requests() - before)}, nil
}

// runMeasured runs a program to its end, and writes its usage.
func runMeasured(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("-measured needs a program")
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return err
	}
	r, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return errors.New("this system does not report the memory of a process")
	}
	return json.NewEncoder(out).Encode(usage{CPU: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), KiB: r.Maxrss})
}

func row(figure, format string, value, floor, most float64) table.Row {
	return table.Row{
		Figure: figure, Value: fmt.Sprintf(format, value), Floor: fmt.Sprintf(format, floor), Ratio: fmt.Sprintf("%.2f", value/floor),
		Budget: fmt.Sprintf("%.2f", most), Over: value/floor > most,
	}
}

// allocate gives a claim all GPUs of a node.
func allocate(s *fleetserver.Server, node int, profile string) error {
	name := fleetserver.NodeName(node)
	all, err := slicetest.Node(profile, name, 0)
	if err != nil {
		return err
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "training", Name: name}, Status: resourceapi.ResourceClaimStatus{
		Allocation:  &resourceapi.AllocationResult{},
		ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID(name)}},
	}}
	for _, slice := range all {
		for _, d := range slice.Spec.Devices {
			if pool.Text(d, "type") == string(gpu.KindGPU) {
				c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
					Request: "gpu", Driver: slicetest.Driver, Pool: slice.Spec.Pool.Name, Device: d.Name,
				})
			}
		}
	}
	s.Add("resourceclaims", c)
	return nil
}

// list is the floor: it lists the slices and claims, and keeps them.
func list(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType, config.QPS = runtime.ContentTypeProtobuf, -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	o := metav1.ListOptions{Limit: 500}
	var kept []resourceapi.ResourceSlice
	for more := true; more; more = o.Continue != "" {
		page, err := client.ResourceV1().ResourceSlices().List(ctx, o)
		if err != nil {
			return err
		}
		kept, o.Continue = append(kept, page.Items...), page.Continue
	}
	var claims []resourceapi.ResourceClaim
	for more := true; more; more = o.Continue != "" {
		page, err := client.ResourceV1().ResourceClaims("").List(ctx, o)
		if err != nil {
			return err
		}
		claims, o.Continue = append(claims, page.Items...), page.Continue
	}
	if len(kept) == 0 || len(claims) == 0 {
		return errors.New("the server has no slices or claims")
	}
	return nil
}
