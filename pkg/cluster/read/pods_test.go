// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"gpu-dra-driver/pkg/cluster/waiting"
)

// full returns a pod with all that some use keeps, and more.
func full(node string) *corev1.Pod {
	list := func(cpu, gpus string) corev1.ResourceList {
		out := corev1.ResourceList{"cpu": resource.MustParse(cpu)}
		if gpus != "" {
			out["nvidia.com/gpu"] = resource.MustParse(gpus)
		}
		return out
	}
	container := func(name, cpu, gpus string) corev1.Container {
		l := list(cpu, gpus)
		resources := corev1.ResourceRequirements{Limits: l, Requests: l}
		return corev1.Container{Name: name, Image: "image", Resources: resources}
	}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container("sidecar", "1", "1")
	sidecar.RestartPolicy = &always
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: "p", UID: "u", ResourceVersion: "3", Labels: map[string]string{"app": "x"},
			Annotations: map[string]string{"a": "b", "scheduling.k8s.io/group-name": "g"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:phase":{}}}`)},
				{Manager: "dra-controller", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:nominatedNodeName":{}}}`)},
			},
		},
		Spec: corev1.PodSpec{
			NodeName: node, Priority: new(int32(7)), Overhead: list("2", ""),
			InitContainers: []corev1.Container{container("init", "9", "3"), sidecar},
			Containers:     []corev1.Container{container("one", "1", "2"), container("two", "1", "")},
			Volumes:        []corev1.Volume{{Name: "v"}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodPending, NominatedNodeName: "n1", PodIP: "10.0.0.1",
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady}, {Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "m"},
			},
		},
	}
}

func marshalled(pod any) []byte {
	out, _ := pod.(*corev1.Pod).Marshal() // A pod always encodes.
	return out
}

func TestPodUsesTrim_AnyUse_KeepsWhatItNeedsAlsoTwice(t *testing.T) {
	for _, u := range []PodUses{{}, {Explain: true}, {Explain: true, Preempt: true}} {
		for _, node := range []string{"", "n1"} {
			name, whole := fmt.Sprintf("%+v on %q", u, node), full(node)
			once, err := u.Trim(whole.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			twice, err := u.Trim(once.(*corev1.Pod).DeepCopy())
			pod := once.(*corev1.Pod)
			if err != nil || !bytes.Equal(marshalled(once), marshalled(twice)) {
				t.Errorf("%s: it keeps %+v, and the second time %+v, %v", name, once, twice, err)
			}
			images := slices.ContainsFunc(waiting.Containers(pod), func(c corev1.Container) bool { return c.Image != "" })
			if pod.Status.PodIP != "" || pod.Annotations["a"] != "" || images {
				t.Errorf("%s: it keeps %+v", name, pod)
			}
			diff := cmp.Diff(waiting.Unclaimed(whole), waiting.Unclaimed(pod)) +
				cmp.Diff(waiting.Resources(whole), waiting.Resources(pod))
			if diff != "" {
				t.Errorf("%s: (-whole +trimmed)\n%s", name, diff)
			}
			if said := waiting.SaidOf(pod).Message; node == "" && (said != "") != u.Explain {
				t.Errorf("%s: the scheduler said %q", name, said)
			}
			if !u.Preempt {
				continue
			}
			requests := func(p *corev1.Pod) corev1.ResourceList {
				return resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
			}
			if diff := cmp.Diff(requests(whole), requests(pod)); diff != "" {
				t.Errorf("%s: its requests (-whole +trimmed)\n%s", name, diff)
			}
			if *pod.Spec.Priority != 7 || len(pod.Labels) != 1 || len(pod.Annotations) != 1 ||
				len(pod.ManagedFields) != 1 || pod.ManagedFields[0].Manager != "dra-controller" {
				t.Errorf("%s: it keeps %+v", name, pod)
			}
		}
	}
}

func TestPodUsesKeeps_PodsWithAndWithoutNode_OnlyNeededOnes(t *testing.T) {
	lacks, served, waits := full("n1"), full("n1"), full("")
	served.Spec.InitContainers, served.Spec.Containers = nil, nil
	for u, want := range map[PodUses][]bool{
		{}:                             {false, false, true},
		{Explain: true}:                {true, false, true},
		{Explain: true, Preempt: true}: {true, true, true},
	} {
		if got := []bool{u.keeps(lacks), u.keeps(served), u.keeps(waits)}; !slices.Equal(got, want) {
			t.Errorf("%+v keeps %v", u, got)
		}
	}
	bare := full("")
	bare.Spec.InitContainers, bare.Spec.Containers = nil, nil
	out, err := PodUses{Explain: true, Preempt: true}.Trim(bare)
	if p := out.(*corev1.Pod); err != nil || p.Name != "p" || len(p.Labels)+len(p.Spec.Volumes) != 0 {
		t.Errorf("of a pod that asks for no devices it keeps %+v", p)
	}
}
