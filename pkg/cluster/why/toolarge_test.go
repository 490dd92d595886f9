// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/why"
)

// TestAsk_ObjectTooLargeToJudge_Undecided has marks of the objects that decide. The answer says neither that a pod fits nor that it
// does not, nor does preemption serve it.
func TestAsk_ObjectTooLargeToJudge_Undecided(t *testing.T) {
	selectors := slices.Repeat([]resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: strings.Repeat("x", 10_000)}}}, 30)
	for name, c := range map[string]struct {
		change func(*why.Cluster, *corev1.Pod)
		says   string
	}{
		"pod": {func(_ *why.Cluster, p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"k": strings.Repeat("x", 100_000)}
			*p = *bounded.Keep(p).(*corev1.Pod)
		}, "the pod"},
		"claim": {func(c *why.Cluster, _ *corev1.Pod) {
			last := c.Claims[len(c.Claims)-1].DeepCopy()
			last.Spec.Devices.Requests[0].Exactly.Selectors = selectors
			c.Claims[len(c.Claims)-1] = bounded.Keep(last).(*resourceapi.ResourceClaim)
		}, "ResourceClaim one"},
		"class": {func(c *why.Cluster, _ *corev1.Pod) {
			c.Classes = slices.Clone(c.Classes)
			for i, class := range c.Classes {
				if class.Name == whytest.GPUs {
					class = class.DeepCopy()
					class.Spec.Selectors = selectors
					c.Classes[i] = bounded.Keep(class).(*resourceapi.DeviceClass)
				}
			}
		}, "DeviceClass " + whytest.GPUs},
		"template": {func(c *why.Cluster, p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("t")}}
			template := &resourceapi.ResourceClaimTemplate{}
			template.Namespace, template.Name = whytest.Namespace, "t"
			template.Spec.Spec = *c.Claims[len(c.Claims)-1].Spec.DeepCopy()
			template.Spec.Spec.Devices.Requests[0].Exactly.Selectors = selectors
			c.Templates = []*resourceapi.ResourceClaimTemplate{bounded.Keep(template).(*resourceapi.ResourceClaimTemplate)}
		}, "ResourceClaimTemplate t"},
	} {
		t.Run(name, func(t *testing.T) {
			f := whytest.New()
			if _, err := f.Add("n1", "l40s-4", 1); err != nil {
				t.Fatal(err)
			}
			claim := whytest.Claim("one", whytest.GPUs, 1)
			pod := whytest.Pod("p", claim)
			cluster := f.Cluster
			cluster.Claims = append(slices.Clone(f.Claims), claim)
			c.change(&cluster, pod)
			answer := why.Ask(t.Context(), &cluster, why.Subject{Pod: pod}, why.Options{Driver: "gpu.nvidia.com"})
			if answer.Result != why.Undecided || !strings.Contains(answer.Summary, "too large for the controller's memory: "+c.says) {
				t.Errorf("%s: %s", answer.Result, answer.Summary)
			}
			if cluster.Needs(why.Subject{Pod: pod}, time.Now()).Complete() {
				t.Error("preemption takes the claims for known")
			}
		})
	}
}

// TestAsk_NodeTooLargeToJudge_IsExcluded has a node whose taints are not known.
func TestAsk_NodeTooLargeToJudge_IsExcluded(t *testing.T) {
	f := whytest.New()
	n, err := f.Add("n1", "l40s-4", 1)
	if err != nil {
		t.Fatal(err)
	}
	n.Labels = map[string]string{"k": strings.Repeat("x", 100_000)}
	*n = *bounded.Keep(n).(*corev1.Node)
	claim := whytest.Claim("one", whytest.GPUs, 1)
	pod := whytest.Pod("p", claim)
	cluster := f.Cluster
	cluster.Claims = append(slices.Clone(f.Claims), claim)
	answer := why.Ask(t.Context(), &cluster, why.Subject{Pod: pod}, why.Options{Driver: "gpu.nvidia.com"})
	if answer.Result == why.Fits || !slices.ContainsFunc(answer.Reasons, func(r why.Reason) bool { return strings.Contains(r.Text, "too large to judge") }) {
		t.Errorf("%s: %s %+v", answer.Result, answer.Summary, answer.Reasons)
	}
}
