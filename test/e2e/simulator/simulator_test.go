//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package simulator runs the commands of docs/simulator.md: it installs the chart of the simulator on nodes without boards, and the
// driver's chart with one value. It removes both, and looks for leftovers.
package simulator

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/sim/agent/label"
	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
	"gpu-dra-driver/test/e2e/tutorial"
)

const (
	// chart is the simulator's chart, its release and its namespace.
	chart = "gpu-simulator"
	// root is the chart's default.
	root          = "/var/lib/gpusim-root"
	first, second = "onenode", "onenode-2"
)

var must = e2etest.Must

// stand is the cluster with the directory of the kubectl plugin.
type stand struct {
	*env.Env
	plugins string
}

// addPrograms puts the programs that a user has in PATH into the directory of the plugins.
func (s stand) addPrograms(t *testing.T) {
	t.Helper()
	must(t, os.Symlink(filepath.Join(s.Tree, "bin", "gpusim"), filepath.Join(s.plugins, "kubectl-gpu_sim")))
	helm := "#!/bin/sh\nexec " + filepath.Join(s.Tree, "hack", "tool.sh") + " helm \"$@\"\n"
	must(t, os.WriteFile(filepath.Join(s.plugins, "helm"), []byte(helm), 0o755))
}

// shell runs commands as a user types them.
func (s stand) shell(ctx context.Context, commands ...string) (string, error) {
	path := "PATH=" + s.plugins + ":" + filepath.Dir(s.KubectlPath) + ":" + os.Getenv("PATH")
	return s.Run(ctx, "env", path, "bash", "-euc", strings.Join(commands, "\n"))
}

// gpuSim runs kubectl gpu-sim.
func (s stand) gpuSim(ctx context.Context, args ...string) (string, error) {
	return s.shell(ctx, "kubectl gpu-sim "+strings.Join(args, " "))
}

// printed returns the commands of a section of docs/simulator.md.
func (s stand) printed(t *testing.T, heading string, blocks int) [][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(s.Tree, "docs", "simulator.md"))
	must(t, err)
	commands, err := tutorial.Printed(string(page), heading)
	must(t, err)
	if len(commands) != blocks {
		t.Fatalf("%q has %d blocks of commands, want %d", heading, len(commands), blocks)
	}
	return commands
}

// labels returns the labels of a node.
func (s stand) labels(ctx context.Context, t *testing.T, node string) map[string]string {
	t.Helper()
	n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	must(t, err)
	return n.Labels
}

// left lists the simulator's files and mounts on a node.
func (s stand) left(ctx context.Context, t *testing.T, node string) string {
	t.Helper()
	out, err := s.Run(ctx, s.Onenode, "exec", "--dir", s.Dir, "--node", map[string]string{first: "1", second: "2"}[node], "--",
		"sh", "-c", "find "+root+" -mindepth 1 2>/dev/null | head; grep "+root+" /proc/mounts || true")
	must(t, err)
	return strings.TrimSpace(out)
}

// tainted returns the partitions with a taint.
func (s stand) tainted(ctx context.Context, value string) (names []string, err error) {
	devices, err := s.Devices(ctx, "mig")
	for _, d := range devices {
		if slices.ContainsFunc(d.Taints, func(taint resourceapi.DeviceTaint) bool { return taint.Value == value }) {
			names = append(names, d.Name)
		}
	}
	return names, err
}

func TestChart_NodesWithoutBoards_ServeTheDriverAndLeaveNothing(t *testing.T) {
	ctx := e2etest.Context(t, 5*time.Minute)
	cluster, err := env.FromEnvironment(os.Stderr)
	must(t, err)
	s := stand{cluster, t.TempDir()}
	s.addPrograms(t)
	install, boards := s.printed(t, "Five minutes", 3), s.printed(t, "Choose the boards", 1)[0]
	faults, remove := s.printed(t, "Break a GPU", 3)[1], s.printed(t, "Remove it", 1)[0]
	images, err := filepath.Glob(filepath.Join(s.Tree, "dist", "*.tar"))
	must(t, err)
	must(t, s.Step("load the images", func() error { return s.Node(ctx, "load", images...) }))
	before := map[string]map[string]string{first: s.labels(ctx, t, first), second: s.labels(ctx, t, second)}

	// The first node has the chart's board, the second one another by its label.
	_, err = s.shell(ctx, strings.Replace(boards[0], "NODE", second, 1))
	must(t, err)
	must(t, s.Step("install the simulator", func() error {
		_, err := s.shell(ctx, install[0]...)
		return err
	}))
	must(t, s.Step("install the driver", func() error {
		if _, err := s.shell(ctx, install[1]...); err != nil {
			return err
		}
		return s.WaitPublished(ctx, 12)
	}))
	s.checkPolicy(ctx, t)

	demos, err := s.Demos()
	must(t, err)
	demo := demos[slices.IndexFunc(demos, func(d env.Demo) bool { return d.Name == "mig-one" })]
	var pods []corev1.Pod
	log := ""
	must(t, s.Step("run a pod with a partition", func() error {
		if log, err = s.shell(ctx, install[2]...); err != nil {
			return err
		}
		pods, err = s.WaitSettled(ctx, demo)
		return err
	}))
	if !strings.Contains(log, "MIG-") {
		t.Errorf("the commands print\n%s", log)
	}
	view, err := s.Inspect(ctx, pods[0].Namespace, pods[0].Name, pods[0].Spec.Containers[0].Name)
	must(t, err)
	if pods[0].Spec.NodeName != first || len(view.GPUs()) != 1 || len(view.Capabilities()) != 2 ||
		!slices.ContainsFunc(view.UUIDs(), func(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }) {
		t.Errorf("on %s the pod sees %v, %v and %v", pods[0].Spec.NodeName, view.GPUs(), view.Capabilities(), view.UUIDs())
	}
	out, err := s.gpuSim(ctx, "mig", first, "list")
	if err != nil || !strings.Contains(out, "1g.10gb") {
		t.Errorf("%v: the partitions are\n%s", err, out)
	}

	s.checkUtilization(ctx, t, pods[0])
	s.checkFault(ctx, t, strings.TrimPrefix(view.GPUs()[0], "/dev/nvidia"))
	for _, command := range faults {
		_, err := s.shell(ctx, strings.ReplaceAll(command, "NODE", first))
		must(t, err)
	}
	must(t, s.Step("remove the pod", func() error { return s.Remove(ctx, demo) }))
	// A smaller board in the place of one that the driver has mounted.
	_, err = s.shell(ctx, strings.Replace(boards[1], "NODE", second, 1))
	must(t, err)
	must(t, s.Step("take two GPUs from a node", func() error { return s.WaitPublished(ctx, 10) }))

	// Its slices stay for 30 s, after which the kubelets remove them. The command that removes its labels of nodes then is of the
	// suite main.
	must(t, s.Step("uninstall both", func() error {
		_, err := s.shell(ctx, remove...)
		return err
	}))
	for _, node := range []string{first, second} {
		if left := s.left(ctx, t, node); left != "" {
			t.Errorf("left on %s:\n%s", node, left)
		}
		now := s.labels(ctx, t, node)
		maps.DeleteFunc(now, func(key, _ string) bool {
			return key == label.Board || key == label.GPUs || strings.Contains(key, "nvidia.com/")
		})
		if diff := cmp.Diff(before[node], now); diff != "" {
			t.Errorf("labels of %s (-before +after):\n%s", node, diff)
		}
	}
	out, err = s.Kubectl(ctx, "get", "all,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings",
		"--all-namespaces", "--selector=app.kubernetes.io/name="+chart, "--output=name")
	if err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("%v: left in the cluster:\n%s", err, out)
	}
}

// checkFault loses the GPU of a claim, and gets it back. A lost GPU without a claim would not be published.
func (s stand) checkFault(ctx context.Context, t *testing.T, index string) {
	t.Helper()
	wait := func(what string, some bool) {
		t.Helper()
		must(t, s.Step(what, func() error {
			return s.Eventually(ctx, what, 60*time.Second, func(ctx context.Context) (bool, string) {
				names, err := s.tainted(ctx, health.Lost)
				return err == nil && len(names) > 0 == some, fmt.Sprint(names, err)
			})
		}))
	}
	_, err := s.gpuSim(ctx, "inject", first, "lose", index)
	must(t, err)
	wait("the partition of a lost GPU is tainted", true)
	// The board is not the pod's.
	must(t, s.Step("replace the simulator's pods", func() error {
		if _, err := s.Kubectl(ctx, "--namespace", chart, "delete", "pods", "--all", "--wait"); err != nil {
			return err
		}
		_, err := s.Kubectl(ctx, "--namespace", chart, "rollout", "status", "daemonset/"+chart, "--timeout=60s")
		return err
	}))
	if out, err := s.gpuSim(ctx, "list", first); err != nil || !strings.Contains(out, "lost") {
		t.Errorf("%v: the GPUs are\n%s", err, out)
	}
	_, err = s.gpuSim(ctx, "inject", first, "restore", index)
	must(t, err)
	wait("the taint ends", false)
}

// checkUtilization gives a pod an annotation, and takes it away.
func (s stand) checkUtilization(ctx context.Context, t *testing.T, pod corev1.Pod) {
	t.Helper()
	load := "70 % by " + pod.Namespace + "/" + pod.Name
	for _, step := range []struct {
		annotation string
		loaded     bool
	}{{label.Utilization + "=70", true}, {label.Utilization + "-", false}} {
		_, err := s.Kubectl(ctx, "--namespace", pod.Namespace, "annotate", "pod", pod.Name, step.annotation)
		must(t, err)
		must(t, s.Eventually(ctx, "the utilization after "+step.annotation, 20*time.Second, func(ctx context.Context) (bool, string) {
			out, err := s.gpuSim(ctx, "list", first)
			return err == nil && strings.Contains(out, load) == step.loaded, out
		}))
	}
}

// checkPolicy writes as the simulator of the first node.
func (s stand) checkPolicy(ctx context.Context, t *testing.T) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(t, err)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + chart + ":" + chart,
		Extra:    map[string][]string{"authentication.kubernetes.io/node-name": {first}},
	}
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	for _, c := range []struct{ node, patch, refused string }{
		{first, `{"metadata":{"labels":{"` + label.Present + `":"true"}}}`, ""},
		{second, `{"metadata":{"labels":{"` + label.Present + `":null}}}`, "own node only"},
		{first, `{"metadata":{"labels":{"mine":"1"}}}`, "two labels"},
		{first, `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`, "two labels"},
		{first, `{"metadata":{"annotations":{"mine":"1"}}}`, "labels of its node only"},
		{first, `{"spec":{"unschedulable":true}}`, "labels of its node only"},
	} {
		_, err := client.CoreV1().Nodes().Patch(ctx, c.node, types.MergePatchType, []byte(c.patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s on %s: %v, want %q", c.patch, c.node, err, c.refused)
		}
	}
}
