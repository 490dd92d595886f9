//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package recipes runs the shipped images and chart beside the managers of JobSet, LeaderWorkerSet, Kubeflow's operators for PyTorch and
// MPI, and KubeRay, with the manifests of demo/recipes.
package recipes

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

var (
	cluster *env.Env
	must    = e2etest.Must
)

func TestMain(m *testing.M) {
	e2etest.Main(m, func(ctx context.Context, s *env.Env) error {
		cluster = s
		if err := s.Install(ctx, "hgx-h100", 8); err != nil {
			return err
		}
		managers := []env.Manager{
			{Name: "jobset", Config: config("jobset")},
			{Name: "lws", Config: config("lws")},
			{Name: "training", Namespace: "kubeflow", Container: "training-operator", Component: "test/e2e/recipes/testdata/training"},
			{Name: "mpi", Namespace: "mpi-operator", Container: "mpi-operator", Component: "test/e2e/recipes/testdata/mpi"},
			{Name: "kuberay", Container: "kuberay-operator", Component: "test/e2e/recipes/testdata/kuberay"},
		}
		var whats []string
		for _, m := range managers {
			whats = append(whats, "install "+m.Name)
		}
		return s.Parallel(len(managers), whats, func(i int) error { return s.InstallManager(ctx, managers[i]) })
	})
}

// config is the configuration of JobSet's or LeaderWorkerSet's manager.
func config(name string) string {
	return fmt.Sprintf(`apiVersion: config.%s.x-k8s.io/v1alpha1
kind: Configuration
internalCertManagement: {enable: true}
leaderElection: {leaderElect: false}
`, name)
}

// apply waits until the manager's webhooks accept the objects, because a manager can be ready before them.
func apply(ctx context.Context, t *testing.T, file string) {
	t.Helper()
	must(t, cluster.Eventually(ctx, "apply "+file, 2*time.Minute, func(ctx context.Context) (bool, string) {
		_, err := cluster.Kubectl(ctx, "apply", "-f", file)
		return err == nil, fmt.Sprint(err)
	}))
}

func pods(ctx context.Context, t *testing.T, namespace, selector string) []corev1.Pod {
	t.Helper()
	list, err := cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	must(t, err)
	return list.Items
}

// waiting waits until count pods cannot be scheduled, and checks that their claims have no devices.
func waiting(ctx context.Context, t *testing.T, namespace, selector string, count int) {
	t.Helper()
	must(t, cluster.Eventually(ctx, selector+" to wait", time.Minute, func(context.Context) (bool, string) {
		n := 0
		for _, p := range pods(ctx, t, namespace, selector) {
			if env.Unschedulable(p) != "" {
				n++
			}
		}
		return n == count, fmt.Sprintf("%d pods wait", n)
	}))
	for _, p := range pods(ctx, t, namespace, selector) {
		if p.Spec.NodeName != "" {
			continue
		}
		claims, err := cluster.Claims(ctx, p)
		must(t, err)
		for _, c := range claims {
			if c.Status.Allocation != nil {
				t.Errorf("%s has devices while its pod waits", c.Name)
			}
		}
	}
}

// member is a running pod, the UID of its only claim, and from inside the container the UUIDs of its GPUs and its environment.
type member struct {
	corev1.Pod
	claim types.UID
	gpus  []string
	env   map[string]string
}

// variant applies a recipe whose object has another name, and other changes.
func variant(ctx context.Context, t *testing.T, recipe, from, to string, replace ...string) {
	t.Helper()
	text, err := os.ReadFile(recipe)
	must(t, err)
	file := filepath.Join(t.TempDir(), to)
	for _, pair := range append(slices.Collect(slices.Chunk(replace, 2)), []string{"name: " + from, "name: " + to}) {
		changed := bytes.ReplaceAll(text, []byte(pair[0]), []byte(pair[1]))
		if bytes.Equal(changed, text) {
			t.Fatalf("%s does not contain %q", recipe, pair[0])
		}
		text = changed
	}
	must(t, os.WriteFile(file, text, 0o600))
	apply(ctx, t, file)
}

// members waits until a namespace has count pods with claims that run and are not of before, and lists them by name. Each must have
// a group of size GPUs, which NVLink connects and no other pod has.
func members(ctx context.Context, t *testing.T, namespace string, count, size int, before ...member) []member {
	t.Helper()
	var running []corev1.Pod
	must(t, cluster.Eventually(ctx, "pods of "+namespace, 3*time.Minute, func(context.Context) (bool, string) {
		running = pods(ctx, t, namespace, "")
		running = slices.DeleteFunc(running, func(p corev1.Pod) bool { return len(p.Spec.ResourceClaims) == 0 })
		for _, p := range running {
			if p.DeletionTimestamp != nil || slices.ContainsFunc(before, func(m member) bool { return m.UID == p.UID }) {
				return false, p.Name + " is of before"
			}
			if p.Status.Phase != corev1.PodRunning {
				return false, p.Name + " is " + string(p.Status.Phase)
			}
		}
		return len(running) == count, fmt.Sprintf("there are %d", len(running))
	}))
	slices.SortFunc(running, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	state, err := engine.Open(cluster.Root, nil).State()
	must(t, err)
	var out []member
	var specs []string
	users := map[string]string{} // pods by the UUIDs of their GPUs
	for _, p := range running {
		claims, err := cluster.Claims(ctx, p)
		must(t, err)
		if len(claims) != 1 || len(env.Results(claims[0])) != 1 {
			t.Fatalf("claims of %s: %+v", p.Name, claims)
		}
		d, err := gpu.ParseName(env.Results(claims[0])[0].Device)
		must(t, err)
		// A group's name has its first GPU. On a board with switches, its GPUs are adjacent.
		first := slices.IndexFunc(state.GPUs, func(g engine.GPU) bool { return g.Address == d.PCIAddress })
		if d.Size != size || first < 0 || first%size != 0 {
			t.Fatalf("%s has %s, which begins with GPU %d", p.Name, d.Name(), first)
		}
		var want []string
		for _, g := range state.GPUs[first : first+size] {
			want = append(want, g.UUID)
			if other := users[g.UUID]; other != "" {
				t.Errorf("%s and %s both have %s", p.Name, other, g.UUID)
			}
			users[g.UUID] = p.Name
		}
		view, err := cluster.Inspect(ctx, namespace, p.Name, p.Spec.Containers[0].Name)
		must(t, err)
		if got := view.UUIDs(); !slices.Equal(got, want) || len(view.GPUs()) != size {
			t.Errorf("nvidia-smi in %s lists %v, want %v; its device nodes are %v", p.Name, got, want, view.GPUs())
		}
		specs = append(specs, string(claims[0].UID))
		out = append(out, member{p, claims[0].UID, view.UUIDs(), view.Env})
	}
	prepared(ctx, t, specs)
	for _, m := range out {
		if slices.ContainsFunc(before, func(b member) bool { return b.claim == m.claim }) {
			t.Errorf("%s has a claim of before", m.Name)
		}
	}
	return out
}

// prepared waits until the node has the CDI specs of these claims and no others.
func prepared(ctx context.Context, t *testing.T, claims []string) {
	t.Helper()
	slices.Sort(claims)
	must(t, cluster.Eventually(ctx, "only CDI specs of claims in use", time.Minute, func(context.Context) (bool, string) {
		out, err := cluster.OnNode(ctx, "find", "/var/run/cdi", "-name", "k8s."+env.Driver+"-claim_*.json")
		must(t, err)
		got := strings.Fields(out)
		for i, path := range got {
			_, name, _ := strings.Cut(path, "-claim_")
			got[i] = strings.TrimSuffix(name, ".json")
		}
		slices.Sort(got)
		return slices.Equal(got, claims), fmt.Sprintf("the node has specs of %v, want %v", got, claims)
	}))
}

// released waits until there are no claims, and checks that nothing of them is left on the node.
func released(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, cluster.Eventually(ctx, "no claim left", 90*time.Second, func(context.Context) (bool, string) {
		left, err := cluster.Client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
		must(t, err)
		return len(left.Items) == 0, fmt.Sprintf("%d claims are left", len(left.Items))
	}))
	prepared(ctx, t, nil)
}
