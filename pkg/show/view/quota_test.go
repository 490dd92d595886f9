// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/api/budget/v1alpha1"
)

func quotaClass(name, expression, extended string) resourceapi.DeviceClass {
	c := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	if extended != "" {
		c.Spec.ExtendedResourceName = &extended
	}
	return c
}

func resourceQuota(namespace string, hard ...string) corev1.ResourceQuota {
	q := corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for _, one := range hard {
		name, n, _ := strings.Cut(one, "=")
		q.Spec.Hard[corev1.ResourceName(name)] = resource.MustParse(n)
	}
	return q
}

func TestFindings_ResourceQuotaWithHoles_Reported(t *testing.T) {
	const ours = `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == `
	classes := []resourceapi.DeviceClass{
		quotaClass("gpu.nvidia.com", ours+`"gpu"`, "nvidia.com/gpu"), quotaClass("nvlink-8.gpu.nvidia.com", ours+`"nvlink-group"`, ""),
		quotaClass("monitor.gpu.nvidia.com", ours+`"monitor"`, ""), quotaClass("nic.example.com", `device.driver == "nic.example.com"`, ""),
	}
	for name, c := range map[string]struct {
		quotas []corev1.ResourceQuota
		budget string
		want   string
	}{
		"no quota":                       {nil, "", ""},
		"a quota of CPUs":                {[]corev1.ResourceQuota{resourceQuota("a", "cpu=1")}, "", ""},
		"one class":                      {[]corev1.ResourceQuota{resourceQuota("a", "gpu.nvidia.com.deviceclass.resource.k8s.io/devices=2")}, "", "nvlink-8.gpu.nvidia.com"},
		"the resource":                   {[]corev1.ResourceQuota{resourceQuota("a", "requests.nvidia.com/gpu=2")}, "", "nvlink-8.gpu.nvidia.com"},
		"all classes, in two quotas":     {[]corev1.ResourceQuota{resourceQuota("a", "requests.nvidia.com/gpu=2"), resourceQuota("a", "nvlink-8.gpu.nvidia.com.deviceclass.resource.k8s.io/devices=0")}, "", ""},
		"in the quota of another":        {[]corev1.ResourceQuota{resourceQuota("a", "requests.nvidia.com/gpu=2"), resourceQuota("b", "nvlink-8.gpu.nvidia.com.deviceclass.resource.k8s.io/devices=0")}, "", "nvlink-8.gpu.nvidia.com"},
		"limits, which bind nothing":     {[]corev1.ResourceQuota{resourceQuota("a", "limits.nvidia.com/gpu=2")}, "", ""},
		"no claims at all":               {[]corev1.ResourceQuota{resourceQuota("a", "requests.nvidia.com/gpu=2", "count/resourceclaims.resource.k8s.io=0")}, "", ""},
		"some claims":                    {[]corev1.ResourceQuota{resourceQuota("a", "requests.nvidia.com/gpu=2", "count/resourceclaims.resource.k8s.io=5")}, "", "nvlink-8.gpu.nvidia.com"},
		"a budget beside it":             {[]corev1.ResourceQuota{resourceQuota("a", "requests.nvidia.com/gpu=2")}, "a", ""},
		"a budget of another namespace ": {[]corev1.ResourceQuota{resourceQuota("a", "requests.nvidia.com/gpu=2")}, "b", "nvlink-8.gpu.nvidia.com"},
	} {
		d := Diagnosis{Objects: Objects{Driver: "gpu.nvidia.com"}, Classes: classes, Quotas: c.quotas}
		if c.budget != "" {
			d.Budgets = []v1alpha1.GPUBudget{{ObjectMeta: metav1.ObjectMeta{Namespace: c.budget, Name: v1alpha1.Name}}}
		}
		i := slices.IndexFunc(Findings(d, nil), func(f Finding) bool { return f.Subject == "namespace a" })
		switch {
		case i < 0 && c.want != "":
			t.Errorf("%s: no finding", name)
		case i >= 0 && (c.want == "" || !strings.Contains(Findings(d, nil)[i].Message, c.want)):
			t.Errorf("%s: %+v, want %q", name, Findings(d, nil)[i], c.want)
		}
	}
}
