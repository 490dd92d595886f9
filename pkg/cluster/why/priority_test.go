// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/why"
)

func TestConsider_HoldersBelow_NoteSaysWhoPreempts(t *testing.T) {
	const driver = "gpu.nvidia.com"
	never := corev1.PreemptNever
	pod := func(name string, priority int32) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Spec: corev1.PodSpec{Priority: &priority}}
	}
	higher := "its priority is higher than that of team-a/notebook-3; Kubernetes does not preempt for devices"
	for name, c := range map[string]struct {
		value   string
		holder  int32
		unread  bool
		never   bool
		without bool
		foreign bool
		want    string
	}{
		"on":      {value: "true", want: higher + ", but this driver does (chart value preemption.enabled)"},
		"off":     {value: "false", want: higher + ", nor does this driver: its chart value preemption.enabled is false"},
		"unknown": {without: true, want: higher + "; whether this driver does"},
		"Never":   {value: "true", never: true, want: higher + ", and its preemptionPolicy is Never"},
		"equal":   {value: "true", holder: 10},
		"unread":  {value: "true", unread: true, want: "its priority was not compared, because pod team-a/notebook-3 could not be read"},
		// Its users do not read the names of pods of other namespaces.
		"of another namespace": {value: "true", foreign: true},
	} {
		t.Run(name, func(t *testing.T) {
			class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}}
			if !c.without {
				class.Annotations = map[string]string{why.PreemptionAnnotation(driver): c.value}
			}
			high := pod("train", 10)
			if c.never {
				high.Spec.PreemptionPolicy = &never
			}
			holds := func(name string) *resourceapi.ResourceClaim {
				return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Status: resourceapi.ResourceClaimStatus{
					ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name}},
				}}
			}
			cluster := &why.Cluster{Classes: []*resourceapi.DeviceClass{class}, Claims: []*resourceapi.ResourceClaim{holds("peer"), holds("notebook-3")}}
			a := why.Answer{Result: why.Waits, Cures: []why.Cure{{Release: []string{"team-a/peer"}}, {Release: []string{"team-a/notebook-3"}}}}
			pods := map[types.NamespacedName]read.Holder{}
			for _, p := range []*corev1.Pod{pod("peer", 10), pod("notebook-3", c.holder)} {
				if name := (types.NamespacedName{Namespace: p.Namespace, Name: p.Name}); slices.Contains(cluster.Holders(a), name) && !(c.unread && p.Name == "notebook-3") {
					pods[name] = read.Holder{Pod: p}
				}
			}
			o := why.Options{Driver: driver}
			if c.foreign {
				o.Reader, high.Namespace, pods = "team-b", "team-b", nil
			}
			a.Consider(cluster, o, high, nil, pods)
			got := strings.Join(a.Notes, "\n")
			if !strings.HasPrefix(strings.ToLower(got), strings.ToLower(c.want)) || (c.want == "") != (got == "") {
				t.Errorf("notes: %q; expected %q", got, c.want)
			}
		})
	}
}
