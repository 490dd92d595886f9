// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package env is the environment of the end-to-end tests. It installs the driver on the one-machine Kubernetes as a
// user does, with images, chart and demos, and inspects the result from inside the containers.
//
// It runs under onenode, which names the cluster in environment variables: KUBECONFIG, ONENODE, ONENODE_DIR. For another
// cluster, ONENODE is a program with the verbs exec, load, restart, reboot and which, such as demo/kind/node.sh.
// DRIVER_ROOT is then the path of the simulated driver root on its node, and SIMULATOR is `chart`: the chart gpu-simulator makes the
// root, instead of bin/gpusim of this machine.
package env

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/demos"
)

// Namespace is the chart's namespace, Release its Helm release.
const (
	Namespace = "gpu-dra-driver"
	Release   = "gpu-dra-driver"
	// Driver is the driver's name, Class the DeviceClass of a whole GPU.
	Driver = "gpu.nvidia.com"
	// simulator is the simulator's chart, its release and its namespace.
	simulator = "gpu-simulator"
)

// Env is a cluster with the driver's files.
type Env struct {
	// Tree is the root of the source tree, with bin/ and dist/ built.
	Tree string
	// Dir is the cluster's state directory, Root the path of the simulated driver root on the node, below Dir for onenode.
	Dir, Root string
	Onenode   string
	// SimulatorChart is for a node on which the chart gpu-simulator makes Root. Else bin/gpusim of this machine reaches Root.
	SimulatorChart bool
	KubectlPath    string
	Client         kubernetes.Interface
	// Log receives progress messages.
	Log io.Writer

	// Chart is the chart for Helm: a path or an address. Default: the tree's.
	Chart string

	inForce settings // see Configure
	rolls   int      // see Roll
	rolled  []string
}

// FromEnvironment returns the cluster of the environment variables that onenode sets.
func FromEnvironment(log io.Writer) (*Env, error) {
	s := &Env{Dir: os.Getenv("ONENODE_DIR"), Onenode: os.Getenv("ONENODE"), Log: log}
	kubeconfig := os.Getenv("KUBECONFIG")
	if s.Dir == "" || s.Onenode == "" || kubeconfig == "" {
		return nil, errors.New("ONENODE, ONENODE_DIR and KUBECONFIG are not set: run this under `bin/onenode run --dir DIR -- ...`")
	}
	s.Root = cmp.Or(os.Getenv("DRIVER_ROOT"), filepath.Join(s.Dir, "driver"))
	switch simulator := os.Getenv("SIMULATOR"); simulator {
	case "":
	case "chart":
		s.SimulatorChart = true
	default:
		return nil, fmt.Errorf("SIMULATOR=%s: it can only be chart", simulator)
	}
	var err error
	if s.Tree, err = demos.Tree(); err != nil {
		return nil, err
	}
	if strings.Contains(s.Onenode, "/") && !filepath.IsAbs(s.Onenode) {
		s.Onenode = filepath.Join(s.Tree, s.Onenode)
	}
	s.Chart = filepath.Join(s.Tree, "deployments", "helm", "gpu-dra-driver")
	out, err := exec.Command(s.Onenode, "which", "kubectl").Output()
	if err != nil {
		return nil, fmt.Errorf("find kubectl: %w", err)
	}
	s.KubectlPath = strings.TrimSpace(string(out))
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	config.QPS = -1
	s.Client, err = kubernetes.NewForConfig(config)
	return s, err
}

// Run runs a program and returns its output; an error contains the output too.
func (e *Env) Run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = e.Tree
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

// OnNode runs a program inside the node's namespaces.
func (e *Env) OnNode(ctx context.Context, args ...string) (string, error) {
	return e.Run(ctx, e.Onenode, append([]string{"exec", "--dir", e.Dir, "--"}, args...)...)
}

// KillContainer ends container i of a pod without time to end.
func (e *Env) KillContainer(ctx context.Context, p corev1.Pod, i int) error {
	if i >= len(p.Status.ContainerStatuses) {
		return fmt.Errorf("kill container %d of %s: it has no status", i, p.Name)
	}
	_, id, found := strings.Cut(p.Status.ContainerStatuses[i].ContainerID, "://")
	if !found {
		return fmt.Errorf("kill container %d of %s: it has no ID: %+v", i, p.Name, p.Status.ContainerStatuses[i])
	}
	_, err := e.OnNode(ctx, "ctr", "--address", "/run/containerd/containerd.sock", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id)
	return err
}

// Node runs a verb of onenode on the node: "restart", "kubelet".
func (e *Env) Node(ctx context.Context, verb string, args ...string) error {
	_, err := e.Run(ctx, e.Onenode, append([]string{verb, "--dir", e.Dir}, args...)...)
	return err
}

// Sim runs a verb of `gpusim` on the driver root.
func (e *Env) Sim(ctx context.Context, verb string, args ...string) error {
	if e.SimulatorChart {
		_, err := e.Kubectl(ctx, append([]string{"--namespace", simulator, "exec", "daemonset/" + simulator, "--", "gpusim", verb}, args...)...)
		return err
	}
	_, err := e.Run(ctx, filepath.Join(e.Tree, "bin", "gpusim"), append([]string{verb, "--root", e.Root}, args...)...)
	return err
}

// SimState returns the state of the simulated machine.
func (e *Env) SimState(ctx context.Context) (*engine.State, error) {
	if !e.SimulatorChart {
		return engine.Open(e.Root, nil).State()
	}
	out, err := e.OnNode(ctx, "cat", filepath.Join(e.Root, engine.Dir, "state.json"))
	if err != nil {
		return nil, fmt.Errorf("read the state of the simulated machine on the node: %w", err)
	}
	return engine.Decode([]byte(out))
}

// RootOf returns the simulated driver root of a node, counted from 1.
func (e *Env) RootOf(node int) string {
	if node == 1 {
		return e.Root
	}
	return filepath.Join(e.Dir, fmt.Sprintf("node-%d", node), "driver")
}

// SimOn runs a verb of `gpusim` on the driver root of a node.
func (e *Env) SimOn(ctx context.Context, node int, verb string, args ...string) error {
	_, err := e.Run(ctx, filepath.Join(e.Tree, "bin", "gpusim"), append([]string{verb, "--root", e.RootOf(node)}, args...)...)
	return err
}

// Kubectl runs kubectl.
func (e *Env) Kubectl(ctx context.Context, args ...string) (string, error) {
	return e.Run(ctx, e.KubectlPath, args...)
}

// KubectlGPU runs the plugin of kubectl.
func (e *Env) KubectlGPU(ctx context.Context, args ...string) (string, error) {
	return e.Run(ctx, filepath.Join(e.Tree, "bin", "kubectl-gpu"), args...)
}

// lastCall is how long the last call in Eventually may take.
const lastCall = 30 * time.Second

// Eventually calls ok until it reports true or the limit passes. The error then has ok's last reason. The pauses get longer, because
// reading all slices ten times a second takes a tenth of a CPU from what the test waits for. The limit ends no call of ok in
// progress, whose error would hide that reason.
func (e *Env) Eventually(ctx context.Context, what string, limit time.Duration, ok func(context.Context) (bool, string)) error {
	ctx, cancel := context.WithTimeout(ctx, limit+lastCall)
	defer cancel()
	began, passed, why := time.Now(), time.After(limit), ""
	for {
		done, reason := ok(ctx)
		if done {
			return nil
		}
		if reason != "" && (why == "" || ctx.Err() == nil) {
			why = reason
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s (%w): %s", what, limit, context.Cause(ctx), why)
		case <-passed:
			return fmt.Errorf("%s: not within %s: %s", what, limit, why)
		case <-time.After(min(max(time.Since(began)/20, 100*time.Millisecond), 500*time.Millisecond)):
		}
	}
}

// Step runs one part of a longer task and logs its duration.
func (e *Env) Step(what string, do func() error) error {
	fmt.Fprintf(e.Log, "%-80s", what)
	line, err := timed(do)
	fmt.Fprintln(e.Log, line)
	return err
}

// Parallel runs at most limit steps at once, and logs the end of each.
func (e *Env) Parallel(limit int, whats []string, do func(i int) error) error {
	var mu sync.Mutex
	var group sync.WaitGroup
	errs, room := make([]error, len(whats)), make(chan struct{}, limit)
	for i, what := range whats {
		room <- struct{}{}
		group.Go(func() {
			line, err := timed(func() error { return do(i) })
			mu.Lock()
			defer mu.Unlock()
			errs[i] = err
			fmt.Fprintf(e.Log, "%-80s%s\n", what, line)
			<-room
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func timed(do func() error) (line string, err error) {
	began := time.Now()
	err = do()
	mark := "ok"
	if err != nil {
		mark = "failed"
	}
	return fmt.Sprintf(" %6.1f s  %s", time.Since(began).Seconds(), mark), err
}
