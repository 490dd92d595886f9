// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gpu-dra-driver/pkg/cluster/nodelabels"
	"gpu-dra-driver/pkg/wire"
)

func labelsOf(t *testing.T, e *env, node string) map[string]string {
	t.Helper()
	n := get[corev1.Node](e, "nodes", node)
	if n == nil {
		t.Fatalf("there is no Node %s", node)
	}
	return n.Labels
}

func TestLabel_NodeComesAndGoes_OnlyOwnLabelsChange(t *testing.T) {
	objects := machine(t, "l40s-4", "a", 0)
	node, ok := objects[0].(*corev1.Node)
	if !ok {
		t.Fatal("the first is not a Node")
	}
	theirs := map[string]string{"kubernetes.io/hostname": "a", "nvidia.com/gpu.count": "7", "nvidia.com/gpu.deploy.driver": "true", "team": "b"}
	node.Labels, node.Annotations = theirs, map[string]string{"other": "one"}
	at(t, objects, func(t *testing.T, e *env, _ *Controller) {
		got := labelsOf(t, e, "a")
		for key, want := range map[string]string{"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.count": "7", "team": "b", "nvidia.com/gpu.deploy.driver": "true"} {
			if got[key] != want {
				t.Errorf("%s is %q, want %q", key, got[key], want)
			}
		}
		patches := 0
		for _, w := range e.Written() {
			if w == "patch nodes a" {
				patches++
			}
		}
		if patches != 1 {
			t.Errorf("%d patches", patches)
		}
		other := get[corev1.Node](e, "nodes", "a")
		other.Labels["team"], other.Status.Phase = "c", "Running"
		e.Put(other)
		pass(time.Hour)
		wantNoWrites(t, e, "what changed of the node is others'")

		e.Withdraw("a")
		pass(grace - time.Second)
		wantNoWrites(t, e, "the grace is not over")
		pass(2 * time.Second)
		theirs["team"], theirs["nvidia.com/gpu.present"] = "c", "true"
		now := get[corev1.Node](e, "nodes", "a")
		if diff := cmp.Diff(theirs, now.Labels); diff != "" {
			t.Errorf("labels (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff(map[string]string{"other": "one", "gpu-dra-driver/labels": `{"nvidia.com/gpu.present":"true"}`}, now.Annotations); diff != "" {
			t.Errorf("annotations (-want +got)\n%s", diff)
		}
	})
}

func TestLabel_TakenOverByAnother_LeftAlone(t *testing.T) {
	at(t, machine(t, "l40s-4", "a", 0), func(t *testing.T, e *env, _ *Controller) {
		node := get[corev1.Node](e, "nodes", "a")
		node.Labels["nvidia.com/gpu.product"] = "feature-discovery"
		e.Put(node)
		e.Written()
		pass(time.Hour)
		if got := labelsOf(t, e, "a")["nvidia.com/gpu.product"]; got != "feature-discovery" {
			t.Errorf("it became %q", got)
		}
		if w := e.Written(); len(w) > 1 {
			t.Errorf("more than the note of what is ours was written: %v", w)
		}
	})
}

func TestLabel_PoolIncomplete_ChangesNothing(t *testing.T) {
	all := slicesAt(t, "hgx-h100", "a", 1)
	if len(all) < 2 {
		t.Fatalf("%d slices show nothing", len(all))
	}
	at(t, machine(t, "l40s-4", "a", 0), func(t *testing.T, e *env, _ *Controller) {
		before := labelsOf(t, e, "a")
		e.Withdraw("a")
		for _, slice := range all[1:] {
			e.Put(slice)
		}
		pass(3 * grace)
		if diff := cmp.Diff(before, labelsOf(t, e, "a")); diff != "" {
			t.Errorf("a slice is not there yet\n%s", diff)
		}
		// A second removal starts a new grace period.
		e.Withdraw("a")
		pass(grace - time.Minute)
		if diff := cmp.Diff(before, labelsOf(t, e, "a")); diff != "" {
			t.Errorf("the grace is not over\n%s", diff)
		}
		for _, slice := range all {
			e.Put(slice)
		}
		pass(time.Second)
		if got := labelsOf(t, e, "a")["nvidia.com/gpu.product"]; got != "NVIDIA-H100-80GB-HBM3" {
			t.Errorf("the pool is whole, and the product is %q", got)
		}
	})
}

func TestLabel_PartOfPoolReturns_GraceStartsAgain(t *testing.T) {
	all := slicesAt(t, "hgx-h100", "a", 1)
	at(t, machine(t, "hgx-h100", "a", 1), func(t *testing.T, e *env, _ *Controller) {
		e.Withdraw("a")
		pass(grace / 2)
		e.Put(all[0])
		pass(time.Second)
		e.Written()
		e.Remove("resourceslices", all[0].Name)
		pass(grace - time.Second)
		if len(labelsOf(t, e, "a")) < 3 {
			t.Error("the node published less than the grace ago, and its labels are gone")
		}
		pass(2 * time.Second)
		if labels := labelsOf(t, e, "a"); labels["nvidia.com/gpu.product"] != "" || labels["nvidia.com/gpu.present"] == "" {
			t.Errorf("want only the label that selects the plugin's nodes: %v", labels)
		}
	})
}

func TestLabel_Conflict_TriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, machine(t, "l40s-4", "a", 0)...)
		left := 3
		e.Fault = func(r request) (refused, lost error) {
			if r.Verb != "patch" || left == 0 {
				return nil, nil
			}
			left--
			return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, r.Name, errors.New("modified")), nil
		}
		_, stop := e.start()
		defer stop()
		pass(time.Minute)
		if got := labelsOf(t, e, "a")["nvidia.com/gpu.product"]; got != "NVIDIA-L40S" || left > 0 {
			t.Errorf("product %q, %d conflicts were not met", got, left)
		}
	})
}

// TestLabel_TwoDrivers_DoNotFight has two releases whose drivers publish different GPUs of one node.
func TestLabel_TwoDrivers_DoNotFight(t *testing.T) {
	const second = "gpu.example.com"
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, machine(t, "l40s-4", "a", 0)...)
		for _, s := range slicesAt(t, "l40s-4", "a", 1) {
			s.Name, s.Spec.Driver = "second-"+s.Name, second
			e.Put(s)
		}
		_, stopFirst := e.start()
		defer stopFirst()
		_, stopSecond := e.start(func(o *Options) { o.Classes.Driver = second })
		defer stopSecond()
		e.wantFewPatches()
		labels := labelsOf(t, e, "a")
		if labels["gpu.nvidia.com/nvlink-enabled"] == "" || labels[second+"/nvlink-enabled"] == "" {
			t.Errorf("labels %v", labels)
		}
	})
}

// TestLabel_LabelRemovedAgainAndAgain_BacksOff has another program remove a label whenever it exists.
func TestLabel_LabelRemovedAgainAndAgain_BacksOff(t *testing.T) {
	at(t, machine(t, "l40s-4", "a", 0), func(_ *testing.T, e *env, _ *Controller) {
		e.Stored = func(resource string, o *unstructured.Unstructured) {
			if resource == "nodes" {
				unstructured.RemoveNestedField(o.Object, "metadata", "labels", "nvidia.com/gpu.count")
			}
		}
		node := get[corev1.Node](e, "nodes", "a")
		go func() { // Every answer is an event for the controller.
			for range 10_000 {
				time.Sleep(10 * time.Millisecond)
				node.Status.Phase = corev1.NodePhase(fmt.Sprint(time.Now()))
				e.Put(node)
			}
		}()
		e.wantFewPatches()
		pass(time.Minute)
	})
}

// TestLabel_GPUsChangeOften_LabelsFollow changes a node's GPUs: the limit is for labels that another program changes.
func TestLabel_GPUsChangeOften_LabelsFollow(t *testing.T) {
	at(t, machine(t, "l40s-4", "a", 0), func(t *testing.T, e *env, _ *Controller) {
		for i := range 12 {
			profile, product := "t4-1", "Tesla-T4"
			if i%2 == 1 {
				profile, product = "l40s-4", "NVIDIA-L40S"
			}
			e.Withdraw("a")
			for _, slice := range slicesAt(t, profile, "a", 1) {
				e.Put(slice)
			}
			pass(time.Second)
			if got := labelsOf(t, e, "a")["nvidia.com/gpu.product"]; got != product {
				t.Fatalf("change %d: the product is %q after a second, want %q", i, got, product)
			}
		}
	})
}

func (e *env) wantFewPatches() {
	e.T.Helper()
	pass(time.Minute)
	patches := 0
	for _, w := range e.Written() {
		if strings.HasPrefix(w, "patch") {
			patches++
		}
	}
	if patches > 10 {
		e.T.Errorf("%d PATCHes in a minute", patches)
	}
}

func TestLabel_NodeRecreated_LabelledAgain(t *testing.T) {
	at(t, machine(t, "l40s-4", "a", 0), func(t *testing.T, e *env, _ *Controller) {
		e.Remove("nodes", "a")
		pass(time.Minute)
		e.Written() // One more try can have been under way.
		e.Withdraw("a")
		pass(3 * grace)
		for _, w := range e.Written() {
			if strings.HasSuffix(w, "nodes a") {
				t.Errorf("%s, and there is none", w)
			}
		}
		for _, o := range machine(t, "t4-1", "a", 0) {
			e.Put(o)
		}
		pass(time.Minute)
		if got := labelsOf(t, e, "a")["nvidia.com/gpu.product"]; got != "Tesla-T4" {
			t.Errorf("product %q", got)
		}
	})
}

func TestLabel_LabelsOff_NodesLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, machine(t, "l40s-4", "a", 0)...)
		_, stop := e.start(func(o *Options) { o.LabelNodes, o.Classes.Models, o.Classes.Profiles = false, false, false })
		defer stop()
		pass(time.Hour)
		wantNoWrites(t, e, "nothing is wanted")
		for _, read := range e.ReadRequests() {
			if strings.Contains(read, "nodes") {
				t.Errorf("%s, and no right to it is needed", read)
			}
		}
	})
}

func TestTrimNode_Node_KeepsWhatDecidesAndOwnAnnotations(t *testing.T) {
	reserved := wire.ReservationAnnotation("gpu.nvidia.com", "gpu-0")
	whole := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "a", ResourceVersion: "3", ManagedFields: []metav1.ManagedFieldsEntry{{}}, Finalizers: []string{"f"},
		Labels:      map[string]string{"a": "b", "nvidia.com/x": "y", "gpu.nvidia.com/z": "w"},
		Annotations: map[string]string{"a": "b", nodelabels.Written("gpu.nvidia.com"): "{}", reserved: "t"},
	}, Spec: corev1.NodeSpec{ProviderID: "p", Unschedulable: true, Taints: []corev1.Taint{{Key: "t"}}}, Status: corev1.NodeStatus{
		Images:      []corev1.ContainerImage{{}},
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse("1"), "nvidia.com/gpu": resource.MustParse("2"), "none.com/x": {}},
	}}
	out, err := trimNode("gpu.nvidia.com", false)(whole)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "a", ResourceVersion: "3", Labels: map[string]string{"a": "b", "nvidia.com/x": "y", "gpu.nvidia.com/z": "w"},
		Annotations: map[string]string{nodelabels.Written("gpu.nvidia.com"): "{}"},
	}, Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Key: "t"}}}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2"), "none.com/x": {}},
	}}, out); diff != "" {
		t.Error(diff)
	}
	out, err = trimNode("gpu.nvidia.com", true)(whole)
	if err != nil {
		t.Fatal(err)
	}
	n := out.(*corev1.Node)
	if len(n.Annotations) != 2 || n.Annotations[reserved] != "t" || len(n.Status.Allocatable) != 3 {
		t.Errorf("preemption has %+v", n)
	}
	if other, err := trimNode("gpu.nvidia.com", true)(&resourceapi.DeviceClass{}); err != nil || other == nil {
		t.Error(other, err)
	}
}
