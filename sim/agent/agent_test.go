// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"

	"gpu-dra-driver/sim/agent/label"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

func TestChoose_LabelsOfNode_GiveMachine(t *testing.T) {
	byDefault := Want{Board: "hgx-h100", GPUs: 4, DriverVersion: "550.54.15"}
	for _, c := range []struct {
		name     string
		def      Want
		labels   map[string]string
		want     Want
		rejected string
	}{
		{"no labels", byDefault, nil, byDefault, ""},
		{"no default", Want{}, nil, Want{}, ""},
		{"no default but settings", Want{GPUs: 2}, nil, Want{}, ""},
		{"default none", Want{Board: label.None}, nil, Want{}, ""},
		{"none by label", byDefault, map[string]string{label.Board: label.None, label.GPUs: "1"}, Want{}, ""},
		{"another board has its own driver", byDefault, map[string]string{label.Board: "t4-1"}, Want{Board: "t4-1"}, ""},
		{"the default's board", byDefault, map[string]string{label.Board: "hgx-h100"}, byDefault, ""},
		{"GPUs", byDefault, map[string]string{label.GPUs: "2"}, Want{Board: "hgx-h100", GPUs: 2, DriverVersion: "550.54.15"}, ""},
		{"board and GPUs", Want{}, map[string]string{label.Board: "l40s-4", label.GPUs: "4"}, Want{Board: "l40s-4", GPUs: 4}, ""},
		{"unknown board", byDefault, map[string]string{label.Board: "h100"}, Want{}, "hgx-h100, "},
		{"too many GPUs", byDefault, map[string]string{label.GPUs: "9"}, Want{}, "has 8"},
		{"too many GPUs by default", Want{Board: "t4-1", GPUs: 2}, nil, Want{}, "has 1"},
		{"no number", byDefault, map[string]string{label.GPUs: "all"}, Want{}, "from 1 to 8"},
		{"no GPUs", byDefault, map[string]string{label.GPUs: "0"}, Want{}, "from 1 to 8"},
	} {
		got, err := Choose(c.def, c.labels)
		if c.rejected != "" {
			if err == nil || !strings.Contains(err.Error(), c.rejected) {
				t.Errorf("%s: %v", c.name, err)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

// machine returns the place of a machine that does not exist yet.
func machine(t *testing.T) Machine {
	t.Helper()
	donor := simtest.Root(t, "t4-1", nil) // for its built library and nvidia-smi
	return Machine{
		Root: filepath.Join(t.TempDir(), "root"), Seed: "node-1", BootID: "first",
		Library: donor.Library, SMI: filepath.Join(donor.Path, driverroot.BinDir, "nvidia-smi"),
	}
}

func state(t *testing.T, m Machine) *engine.State {
	t.Helper()
	r, err := driverroot.Open(m.Root)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.State()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func change(t *testing.T, m Machine, do func(*engine.State)) {
	t.Helper()
	r, err := driverroot.Open(m.Root)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Update(func(s *engine.State) error { do(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestApply_WantsChange_MachineFollows(t *testing.T) {
	m := machine(t)
	step := func(want Want, expect string) {
		t.Helper()
		if got, err := m.Apply(want); err != nil || got != expect {
			t.Fatalf("%+v: %q, %v; want %q", want, got, err, expect)
		}
	}
	lost := func() bool { return state(t, m).GPUs[0].Lost }
	h100, l40s := Want{Board: "hgx-h100", GPUs: 2}, Want{Board: "l40s-4"}
	step(Want{}, "")
	step(h100, "made")
	uuid := state(t, m).GPUs[0].UUID
	change(t, m, func(s *engine.State) { s.GPUs[0].Lost = true })
	step(h100, "")
	if !lost() {
		t.Error("a fault ended without a change")
	}
	// Another process of the agent, after a boot of the host.
	m.BootID = "second"
	step(h100, "rebooted")
	step(h100, "")
	if lost() || state(t, m).Boots != 2 || state(t, m).GPUs[0].UUID != uuid {
		t.Errorf("after a boot of the host: %+v", state(t, m))
	}
	step(l40s, "replaced")
	if s := state(t, m); len(s.OnBus()) != 4 || s.Profile.Name != "l40s-4" {
		t.Errorf("%d GPUs of %s", len(s.OnBus()), s.Profile.Name)
	}
	step(Want{}, "removed")
	step(Want{}, "")
	if _, err := os.Lstat(m.Root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	m.Seed = "node-2"
	step(h100, "made")
	if state(t, m).GPUs[0].UUID == uuid {
		t.Error("two nodes have the same GPU")
	}
}

// TestApply_InterruptedReplacement_IsFinished has a machine without state, as between two boards.
func TestApply_InterruptedReplacement_IsFinished(t *testing.T) {
	m := machine(t)
	if _, err := m.Apply(Want{Board: "t4-1"}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.Root, engine.Dir, "state.json")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if step, err := m.Apply(Want{Board: "t4-1"}); err != nil || step != "replaced" {
		t.Errorf("%q, %v", step, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove(); err != nil {
		t.Error(err)
	}
}

func TestApply_MachineOfOthers_Stays(t *testing.T) {
	m := machine(t)
	if _, err := driverroot.Up(m.Root, driverroot.Options{Profile: "t4-1", Library: m.Library, SMI: m.SMI}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []Want{{}, {Board: "l40s-4"}} {
		if _, err := m.Apply(want); err == nil || !strings.Contains(err.Error(), "gpusim down --root "+m.Root) {
			t.Errorf("%+v: %v", want, err)
		}
	}
	if got := state(t, m).Profile.Name; got != "t4-1" {
		t.Errorf("the machine is a %s", got)
	}
	// An unreadable state does not say whose the machine is.
	if err := os.WriteFile(filepath.Join(m.Root, engine.Dir, "state.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove(); err == nil {
		t.Error("a machine with an unreadable state is removed")
	}
}

// cluster is an agent on an API server with its node and its DaemonSet.
type cluster struct {
	agent   *Agent
	client  *fake.Clientset
	patched chan struct{} // one for each change of the node by the agent
}

// The fake API server cannot stream lists, and its clients for one kind do not say so.
type (
	listedNodes struct{ typedcorev1.NodeInterface }
	listedSets  struct{ typedappsv1.DaemonSetInterface }
)

func (listedNodes) IsWatchListSemanticsUnSupported() bool { return true }
func (listedSets) IsWatchListSemanticsUnSupported() bool  { return true }

const namespace = "gpu-simulator"

func newCluster(t *testing.T, labels map[string]string) cluster {
	t.Helper()
	client := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: labels}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "simulator", Namespace: namespace, UID: "own"}},
	)
	c := cluster{client: client, patched: make(chan struct{}, 10)}
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		c.patched <- struct{}{}
		return false, nil, nil
	})
	c.agent = &Agent{
		Machine: machine(t), Default: Want{Board: "t4-1"}, Node: "node-1", DaemonSet: "simulator",
		Nodes: listedNodes{client.CoreV1().Nodes()}, DaemonSets: listedSets{client.AppsV1().DaemonSets(namespace)},
		ReadyFile: filepath.Join(t.TempDir(), "run", "ready"), Retry: time.Hour, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	return c
}

func (c cluster) labels(t *testing.T) map[string]string {
	t.Helper()
	node, err := c.agent.Nodes.Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node.Labels
}

// apply lets the agent follow the node's labels once.
func (c cluster) apply(t *testing.T) error {
	t.Helper()
	node, err := c.agent.Nodes.Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c.agent.apply(t.Context(), node)
}

func (c cluster) set(t *testing.T, labels map[string]string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: labels}}
	if _, err := c.agent.Nodes.Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c cluster) ready() string {
	text, _ := os.ReadFile(c.agent.ReadyFile)
	return strings.TrimSpace(string(text))
}

var present = map[string]string{label.Present: "true", label.Hardware: "true"}

func TestAgent_BoardByLabelAndNone_LabelsFollow(t *testing.T) {
	c := newCluster(t, map[string]string{"mine": "1"})
	check := func(ready string, want map[string]string) {
		t.Helper()
		if err := c.apply(t); err != nil {
			t.Fatal(err)
		}
		want = maps.Clone(want)
		want["mine"] = "1"
		if diff := cmp.Diff(want, c.labels(t)); diff != "" || c.ready() != ready {
			t.Errorf("ready is %q, want %q; labels (-want +got):\n%s", c.ready(), ready, diff)
		}
	}
	check("t4-1", present)
	labels := maps.Clone(present)
	labels["mine"], labels[label.Board] = "1", label.None
	c.set(t, labels)
	check("no board", map[string]string{label.Board: label.None})
	if there, err := c.agent.Machine.there(); there || err != nil {
		t.Errorf("the machine is there: %v", err)
	}
}

func TestAgent_NodeWithHardware_GetsNoBoard(t *testing.T) {
	c := newCluster(t, nil)
	check := func(labels map[string]string, ready, problem string) {
		t.Helper()
		labels[label.Hardware] = "true"
		c.set(t, labels)
		err := c.apply(t)
		if problem == "" && (err != nil || c.ready() != ready) || problem != "" && (err == nil || !strings.Contains(err.Error(), problem)) {
			t.Errorf("%v: %v, ready is %q", labels, err, c.ready())
		}
		if there, err := c.agent.Machine.there(); there || err != nil {
			t.Errorf("%v: the node has a board: %v", labels, err)
		}
		if diff := cmp.Diff(labels, c.labels(t)); diff != "" {
			t.Errorf("labels (-before +after):\n%s", diff)
		}
	}
	check(map[string]string{}, "no board, because the node has NVIDIA's hardware", "")
	check(map[string]string{label.Board: "t4-1"}, "", "remove its label "+label.Board)
	check(map[string]string{label.Board: label.None}, "no board", "")
}

// run runs the agent until its node has the labels, and ends it after do.
func (c cluster) run(t *testing.T, do func()) error {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error)
	go func() { ended <- c.agent.Run(ctx) }()
	<-c.patched
	do()
	stop()
	return <-ended
}

func TestRun_EndOfPod_RemovesMachineOnlyWithDaemonSet(t *testing.T) {
	daemonSets := func(c cluster) error {
		return c.client.AppsV1().DaemonSets(namespace).Delete(context.Background(), "simulator", metav1.DeleteOptions{})
	}
	refuse := func(c cluster, code error) {
		c.client.PrependReactor("get", "daemonsets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, code })
	}
	down := errors.New("connection refused")
	for _, c := range []struct {
		name  string
		do    func(cluster) error
		stays bool
	}{
		{"an update or a drain", func(cluster) error { return nil }, true},
		{"the DaemonSet is deleted", daemonSets, false},
		{"the DaemonSet is being deleted", func(c cluster) error {
			now := metav1.Now()
			ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "simulator", UID: "own", DeletionTimestamp: &now, Finalizers: []string{"foregroundDeletion"}}}
			_, err := c.agent.DaemonSets.Update(context.Background(), ds, metav1.UpdateOptions{})
			return err
		}, false},
		{"the chart was installed again", func(c cluster) error {
			ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "simulator", UID: "next"}}
			_, err := c.agent.DaemonSets.Update(context.Background(), ds, metav1.UpdateOptions{})
			return err
		}, false},
		{"no API server", func(c cluster) error { refuse(c, down); return nil }, true},
		{"no permission", func(c cluster) error {
			refuse(c, apierrors.NewForbidden(appsv1.Resource("daemonsets"), "simulator", down))
			return nil
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newCluster(t, nil)
			err := cl.run(t, func() {
				if err := c.do(cl); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Error(err)
			}
			there, err := cl.agent.Machine.there()
			if err != nil || there != c.stays || (cl.labels(t)[label.Present] != "") != c.stays {
				t.Errorf("the machine is there: %t, %v; the labels are %v", there, err, cl.labels(t))
			}
		})
	}
}

func TestUninstall_PodsEnd_ReturnsThen(t *testing.T) {
	selector := map[string]string{"app": "simulator"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "simulator", Namespace: namespace, UID: "own"},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: selector}},
	}
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "simulator-1", Namespace: namespace, Labels: selector,
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "simulator", UID: "own", Controller: &yes}}},
		Spec: corev1.PodSpec{NodeName: "node-7"},
	}
	other := pod.DeepCopy()
	other.Name, other.OwnerReferences = "other", nil
	uninstall := func(ctx context.Context, c *fake.Clientset) error {
		return Uninstall(ctx, c.AppsV1().DaemonSets(namespace), c.CoreV1().Pods(namespace), "simulator", time.Microsecond)
	}
	client := fake.NewClientset(set, pod, other)
	lists := 0
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if lists++; lists == 3 {
			return false, nil, client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), namespace, pod.Name)
		}
		return false, nil, nil
	})
	if err := uninstall(t.Context(), client); err != nil || lists < 3 {
		t.Errorf("after %d looks: %v", lists, err)
	}
	if err := uninstall(t.Context(), client); err != nil {
		t.Errorf("without a DaemonSet: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stuck := fake.NewClientset(set, pod)
	stuck.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return false, nil, nil
	})
	if err := uninstall(ctx, stuck); err == nil || !strings.Contains(err.Error(), "node-7") {
		t.Errorf("with a pod that does not end: %v", err)
	}
}
