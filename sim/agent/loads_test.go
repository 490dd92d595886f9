// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpu-dra-driver/sim/agent/label"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

// kubelet is the pod-resources API with these devices of pods: CDI names have an equals sign, and the others come from a device
// plugin.
type kubelet struct {
	podresources.PodResourcesListerClient
	devices map[string][]string
	fails   error
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest, ...grpc.CallOption) (*podresources.ListPodResourcesResponse, error) {
	if k.fails != nil {
		return nil, k.fails
	}
	answer := &podresources.ListPodResourcesResponse{}
	for pod, names := range k.devices {
		var c podresources.ContainerResources
		for _, name := range names {
			if strings.Contains(name, "=") {
				r := &podresources.ClaimResource{CdiDevices: []*podresources.CDIDevice{{Name: name}}}
				c.DynamicResources = append(c.DynamicResources, &podresources.DynamicResource{ClaimResources: []*podresources.ClaimResource{r}})
			} else {
				c.Devices = append(c.Devices, &podresources.ContainerDevices{ResourceName: "nvidia.com/gpu", DeviceIds: []string{name}})
			}
		}
		answer.PodResources = append(answer.PodResources, &podresources.PodResources{
			Namespace: "team", Name: pod, Containers: []*podresources.ContainerResources{&c, &c}, // Both containers have the claim.
		})
	}
	return answer, nil
}

func pod(name, utilization string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if utilization != "" {
		p.Annotations = map[string]string{label.Utilization: utilization}
	}
	return p
}

// loaded lists the workloads of a machine.
func loaded(s *engine.State) (list []string) {
	for i, g := range s.GPUs {
		for _, w := range g.Workloads {
			text := fmt.Sprintf("GPU %d: %d %% by %s", i, w.Load, w.Owner)
			if w.Place != nil {
				text += fmt.Sprintf(" on %d/%d", w.Place.GPUInstance, w.Place.ComputeInstance)
			}
			list = append(list, text)
		}
	}
	return list
}

// stand is a machine with two GPUs, of which the second has two partitions, and its CDI specs.
func stand(t *testing.T) (*simtest.DriverRoot, *Loads, *kubelet) {
	t.Helper()
	r := simtest.Root(t, "hgx-h100", nil)
	var parts []engine.Instance
	err := r.Update(func(s *engine.State) error {
		g := &s.GPUs[1]
		if code := s.SetMIGMode(g, true); code != 0 {
			return fmt.Errorf("MIG mode: %w", code)
		}
		for range 2 {
			i, code := s.CreateInstance(g, 19, engine.AnyStart)
			if code != 0 {
				return fmt.Errorf("instance: %w", code)
			}
			if _, code := s.CreateCompute(g, i.ID, 0); code != 0 {
				return fmt.Errorf("compute instance: %w", code)
			}
		}
		parts = g.Instances
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	node := func(path string) string {
		return fmt.Sprintf(`{"path": "/dev/%s", "hostPath": "/root/dev/%[1]s"}`, path)
	}
	spec := fmt.Sprintf(`{"cdiVersion": "0.5.0", "kind": "example.com/claim", "containerEdits": {"deviceNodes": [%s]}, "devices": [
		{"name": "whole", "containerEdits": {"deviceNodes": [%s]}}, {"name": "part", "containerEdits": {"deviceNodes": [%s, %s, %s]}}
	]}`, node("nvidiactl"), node("nvidia0"), node("nvidia1"),
		node(fmt.Sprint("nvidia-cap", engine.InstanceMinor(1, parts[0].ID))), node(fmt.Sprint("nvidia-cap", engine.ComputeMinor(1, parts[0].ID, 0))))
	if err := os.WriteFile(filepath.Join(dir, "claim.json"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	k := &kubelet{devices: map[string][]string{
		"whole": {"example.com/claim=whole"}, "part": {"example.com/claim=part"}, "gone": {"example.com/claim=gone"}, "quiet": {"example.com/claim=whole"},
		"served": {state(t, Machine{Root: r.Path}).GPUs[2].UUID + "::3"}, "servedpart": {parts[1].Computes[0].UUID},
	}}
	return r, &Loads{Kubelet: k, CDIDir: dir, Every: time.Millisecond}, k
}

func TestLoads_AnnotatedPods_LoadTheirDevices(t *testing.T) {
	r, l, k := stand(t)
	parts := state(t, Machine{Root: r.Path}).GPUs[1].Instances
	done := pod("whole", "90")
	done.Status.Phase = corev1.PodSucceeded
	for _, c := range []struct {
		name    string
		pods    []any
		want    []string
		problem string
		fails   error
	}{
		{"nothing", []any{pod("quiet", "")}, nil, "", nil},
		{"a whole GPU", []any{pod("whole", "85"), pod("quiet", "")}, []string{"GPU 0: 85 % by team/whole"}, "", nil},
		{"another percentage", []any{pod("whole", "20%")}, []string{"GPU 0: 20 % by team/whole"}, "", nil},
		{"the kubelet does not answer", []any{pod("whole", "85")}, []string{"GPU 0: 20 % by team/whole"}, "asking the kubelet", errors.New("down")},
		{"two pods of a GPU", []any{pod("whole", "30"), pod("quiet", "40")}, []string{"GPU 0: 40 % by team/quiet", "GPU 0: 30 % by team/whole"}, "", nil},
		{"a partition", []any{pod("part", "70")}, []string{fmt.Sprintf("GPU 1: 70 %% by team/part on %d/0", parts[0].ID)}, "", nil},
		{"of a device plugin", []any{pod("served", "10"), pod("servedpart", "5")},
			[]string{fmt.Sprintf("GPU 1: 5 %% by team/servedpart on %d/0", parts[1].ID), "GPU 2: 10 % by team/served"}, "", nil},
		{"no number", []any{pod("whole", "much"), pod("quiet", "1")}, []string{"GPU 0: 1 % by team/quiet"}, `pod team/whole has "much": give a number from 0 to 100`, nil},
		{"too much", []any{pod("whole", "101")}, nil, "from 0 to 100", nil},
		{"a claim that ended, a pod without devices", []any{pod("gone", "50"), pod("none", "50")}, nil, "", nil},
		{"a pod that ended", []any{done}, nil, "", nil},
		{"none asked for", []any{pod("whole", "0")}, nil, "", nil},
	} {
		k.fails = c.fails
		err := l.follow(t.Context(), r.Path, c.pods)
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, loaded(state(t, Machine{Root: r.Path}))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if err := l.follow(t.Context(), filepath.Join(t.TempDir(), "absent"), []any{pod("whole", "50")}); err != nil {
		t.Errorf("without a machine: %v", err)
	}
}

func TestLoads_Unchanged_MachineIsNotWritten(t *testing.T) {
	r, l, _ := stand(t)
	pods := []any{pod("whole", "85")}
	if err := l.follow(t.Context(), r.Path, pods); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(r.Path, engine.Dir, "state.json")
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.follow(t.Context(), r.Path, pods); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) || after.ModTime() != before.ModTime() {
		t.Errorf("the state was written again: %v", err)
	}
}

type listedPods struct{ typedcorev1.PodInterface }

func (listedPods) IsWatchListSemanticsUnSupported() bool { return true }

func TestLoads_Run_FollowsThePodsOfTheNode(t *testing.T) {
	r, l, _ := stand(t)
	client := fake.NewClientset(pod("whole", "85"))
	l.Pods = listedPods{client.CoreV1().Pods("")}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		l.run(ctx, r.Path, "node-1", slog.New(slog.NewTextHandler(io.Discard, nil)))
		close(ended)
	}()
	waitLoads := func(want ...string) {
		t.Helper()
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		deadline := time.After(20 * time.Second)
		for {
			got := loaded(state(t, Machine{Root: r.Path}))
			if cmp.Equal(want, got) {
				return
			}
			select {
			case <-ticker.C:
			case <-deadline:
				t.Fatalf("the loads are %v, want %v", got, want)
			}
		}
	}
	waitLoads("GPU 0: 85 % by team/whole")
	if _, err := client.CoreV1().Pods("team").Update(t.Context(), pod("whole", "15"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitLoads("GPU 0: 15 % by team/whole")
	if err := client.CoreV1().Pods("team").Delete(t.Context(), "whole", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitLoads()
	stop()
	<-ended
}
