// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	driver = "gpu.nvidia.com"
	gpus   = "nvidia.com/gpu"
	part   = "nvidia.com/mig-1g.10gb"
	named  = resourceapi.ResourceDeviceClassPrefix
)

func class(name, expression, serves string) *resourceapi.DeviceClass {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if expression != "" {
		c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	}
	if serves != "" {
		c.Spec.ExtendedResourceName = &serves
	}
	return c
}

func classes() []*resourceapi.DeviceClass {
	return []*resourceapi.DeviceClass{
		nil,
		class("gpu.nvidia.com", `device.driver == "gpu.nvidia.com"`, gpus),
		class("mig-1g.10gb.nvidia.com", `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`, part),
		class("nic", `device.driver == "nic.example.com"`, "example.com/nic"),
		class("nic-by-attribute", `device.attributes["nic.example.com"].speed == 1`, "example.com/fast"),
		class("mine", `device.driver == "gpu.nvidia.com" && device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("1Gi"))`, "example.com/large"),
		class("any", "", "example.com/any"),
	}
}

func list(all ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(all); i += 2 {
		out[corev1.ResourceName(all[i])] = resource.MustParse(all[i+1])
	}
	return out
}

func container(name string, limits ...string) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: list(limits...), Requests: list(limits...)}}
}

// bound returns a running pod, whose status names a claim for the given containers and resources.
func bound(containers []corev1.Container, mapped ...Resource) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1", Containers: containers}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if len(mapped) > 0 {
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "p-x"}
		for _, m := range mapped {
			p.Status.ExtendedResourceClaimStatus.RequestMappings = append(p.Status.ExtendedResourceClaimStatus.RequestMappings,
				corev1.ContainerExtendedResourceRequest{ContainerName: m.Container, ResourceName: string(m.Name), RequestName: "r"})
		}
	}
	return p
}

func TestLacks_Pods_MissingOrUnknown(t *testing.T) {
	one := func(limits ...string) []corev1.Container { return []corev1.Container{container("c", limits...)} }
	with := func(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
		change(p)
		return p
	}
	plain := &corev1.Node{}
	counts := func(capacity, allocatable corev1.ResourceList) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Capacity: capacity, Allocatable: allocatable}}
	}
	of := func(all ...string) (out []Resource) {
		for i := 0; i < len(all); i += 2 {
			out = append(out, Resource{all[i], corev1.ResourceName(all[i+1])})
		}
		return out
	}
	for name, c := range map[string]struct {
		pod              *corev1.Pod
		node             *corev1.Node
		classes          []*resourceapi.DeviceClass
		missing, unknown []Resource
	}{
		"a GPU":                      {pod: bound(one(gpus, "1")), node: plain, missing: of("c", gpus)},
		"a partition":                {pod: bound(one(part, "2")), node: plain, missing: of("c", part)},
		"by the class":               {pod: bound(one(named+"gpu.nvidia.com", "1")), node: plain, missing: of("c", named+"gpu.nvidia.com")},
		"an administrator's class":   {pod: bound(one("example.com/large", "1")), node: plain, missing: of("c", "example.com/large")},
		"a class of all drivers":     {pod: bound(one("example.com/any", "1")), node: plain, missing: of("c", "example.com/any")},
		"two resources":              {pod: bound(one(part, "1", gpus, "1", "cpu", "1")), node: plain, missing: of("c", gpus, "c", part)},
		"a pod that waits to start":  {pod: with(bound(one(gpus, "1")), func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), node: plain, missing: of("c", gpus)},
		"a phase that is not known":  {pod: with(bound(one(gpus, "1")), func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }), node: plain, missing: of("c", gpus)},
		"a status without a phase":   {pod: with(bound(one(gpus, "1")), func(p *corev1.Pod) { p.Status = corev1.PodStatus{} }), node: plain, missing: of("c", gpus)},
		"limits only":                {pod: with(bound(one(gpus, "1")), func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil }), node: plain, missing: of("c", gpus)},
		"requests only":              {pod: with(bound(one(named+"gpu.nvidia.com", "1")), func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = nil }), node: plain, missing: of("c", named+"gpu.nvidia.com")},
		"a claim":                    {pod: bound(one(gpus, "1"), of("c", gpus)...), node: plain},
		"a claim for one container":  {pod: bound([]corev1.Container{container("c", gpus, "1"), container("d", gpus, "1")}, of("c", gpus)...), node: plain, missing: of("d", gpus)},
		"a claim for one resource":   {pod: bound(one(gpus, "1", part, "1"), of("c", part)...), node: plain, missing: of("c", gpus)},
		"a claim for another's name": {pod: bound(one(gpus, "1"), of("d", gpus)...), node: plain, missing: of("c", gpus)},
		"a claim without a name":     {pod: with(bound(one(gpus, "1"), of("c", gpus)...), func(p *corev1.Pod) { p.Status.ExtendedResourceClaimStatus.ResourceClaimName = "" }), node: plain, missing: of("c", gpus)},
		"an init container": {pod: with(bound(one(gpus, "1"), of("c", gpus)...), func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{container("init", gpus, "1")}
		}), node: plain, missing: of("init", gpus)},
		"a claim of the pod's own besides": {pod: with(bound(one(gpus, "1")), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: new("x")}}
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x", ResourceClaimName: new("x")}}
		}), node: plain, missing: of("c", gpus)},
		"a mirror of a static pod": {pod: with(bound(one(gpus, "1")), func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "a"}
		}), node: plain, missing: of("c", gpus)},

		"a pod without a node":      {pod: with(bound(one(gpus, "1")), func(p *corev1.Pod) { p.Spec.NodeName = "" }), node: plain},
		"a pod that succeeded":      {pod: with(bound(one(gpus, "1")), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), node: plain},
		"a pod that failed":         {pod: with(bound(one(gpus, "1")), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), node: plain},
		"a pod that is deleted":     {pod: with(bound(one(gpus, "1")), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }), node: plain},
		"no resource":               {pod: bound(one("cpu", "1", "memory", "1Gi", "hugepages-2Mi", "2Mi")), node: plain},
		"none of a resource":        {pod: bound(one(gpus, "0")), node: plain},
		"a negative amount":         {pod: bound(one(gpus, "-1")), node: plain},
		"no class":                  {pod: bound(one("nvidia.com/gpu.shared", "1", "amd.com/gpu", "1")), node: plain},
		"another driver's class":    {pod: bound(one("example.com/nic", "1", "example.com/fast", "1", named+"nic", "1")), node: plain},
		"a class that is gone":      {pod: bound(one(gpus, "1")), node: plain, classes: []*resourceapi.DeviceClass{class("other", "", "")}},
		"an attachable volume":      {pod: bound(one("attachable-volumes-x.kubernetes.io/a", "1")), node: plain},
		"a device plugin serves":    {pod: bound(one(gpus, "1")), node: counts(list(gpus, "8"), list(gpus, "8"))},
		"it serves another name":    {pod: bound(one(gpus, "1")), node: counts(list(part, "8"), list(part, "8")), missing: of("c", gpus)},
		"it serves one of two":      {pod: bound(one(gpus, "1", part, "1")), node: counts(list(part, "8"), list(part, "8")), missing: of("c", gpus)},
		"it served":                 {pod: bound(one(gpus, "1")), node: counts(list(gpus, "0"), list(gpus, "0")), unknown: of("c", gpus)},
		"it has only broken GPUs":   {pod: bound(one(gpus, "1")), node: counts(list(gpus, "8"), list(gpus, "0")), unknown: of("c", gpus)},
		"only its capacity is left": {pod: bound(one(gpus, "1")), node: counts(list(gpus, "0"), nil), unknown: of("c", gpus)},
		"it served, and a claim":    {pod: bound(one(gpus, "1"), of("c", gpus)...), node: counts(list(gpus, "0"), list(gpus, "0"))},
		"the node is not known":     {pod: bound(one(gpus, "1", "amd.com/gpu", "1")), unknown: of("c", gpus)},
	} {
		if c.classes == nil {
			c.classes = classes()
		}
		missing, unknown := NewClasses(driver, c.classes).Lacks(c.pod, c.node)
		if diff := cmp.Diff(c.missing, missing); diff != "" {
			t.Errorf("%s: missing:\n%s", name, diff)
		}
		if diff := cmp.Diff(c.unknown, unknown); diff != "" {
			t.Errorf("%s: unknown:\n%s", name, diff)
		}
	}
}

// TestLacks_TwoClassesOfAResource_TheSchedulersCounts has a class of this driver and one of another for the same
// resource: the newer one counts, and of the same age the one whose name is first.
func TestLacks_TwoClassesOfAResource_TheSchedulersCounts(t *testing.T) {
	ours, other := class("gpu.nvidia.com", `device.driver == "gpu.nvidia.com"`, gpus), class("a", `device.driver == "a"`, gpus)
	pod := bound([]corev1.Container{container("c", gpus, "1")})
	for _, c := range []struct {
		ours, other int64
		missing     int
	}{{1, 2, 0}, {2, 1, 1}, {1, 1, 0}} {
		ours.CreationTimestamp, other.CreationTimestamp = metav1.Unix(c.ours, 0), metav1.Unix(c.other, 0)
		for _, all := range [][]*resourceapi.DeviceClass{{ours, other}, {other, ours}} {
			if missing, unknown := NewClasses(driver, all).Lacks(pod, &corev1.Node{}); len(missing) != c.missing || len(unknown) != 0 {
				t.Errorf("ages %d and %d: missing %v, unknown %v", c.ours, c.other, missing, unknown)
			}
		}
	}
}
