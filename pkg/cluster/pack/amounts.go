// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/cluster/waiting"
)

// amounts are CPU, memory and the other resources that a kubelet counts, and the number of pods.
type amounts corev1.ResourceList

// add adds all of the other amounts.
func (a amounts) add(o amounts) {
	for name, q := range o {
		have := a[name].DeepCopy()
		have.Add(q)
		a[name] = have
	}
}

// take takes the amounts that are counted here.
func (a amounts) take(o amounts) {
	for name, have := range a {
		if q, asked := o[name]; asked {
			have = have.DeepCopy()
			have.Sub(q)
			a[name] = have
		}
	}
}

// give is the opposite of take.
func (a amounts) give(o amounts) {
	negative := amounts{}
	for name, q := range o {
		q = q.DeepCopy()
		q.Neg()
		negative[name] = q
	}
	a.take(negative)
}

// lacks returns the first resource of which less is free than is needed, or "". Resources that the kubelet does not
// count are devices of claims.
func (a amounts) lacks(need amounts) corev1.ResourceName {
	found := corev1.ResourceName("")
	for name, q := range need {
		if have, counted := a[name]; counted && q.Sign() > 0 && have.Cmp(q) < 0 && (found == "" || name < found) {
			found = name
		}
	}
	return found
}

// requests are the requests of a pod, as the scheduler counts them.
func requests(pod *corev1.Pod) amounts {
	out := amounts(resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true}))
	out[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return out
}

// freeOn returns what pods leave of each node. A node without its size has no amounts. A kubelet counts zero of a
// resource whose device plugin is gone: devices of claims serve it there, if a class says so.
func freeOn(nodes []*corev1.Node, pods []*corev1.Pod, classes []*resourceapi.DeviceClass) map[string]amounts {
	out, resources := map[string]amounts{}, selector.ResourcesOf(classes)
	for _, n := range nodes {
		if n == nil || len(n.Status.Allocatable) == 0 {
			continue
		}
		free := amounts(n.Status.Allocatable.DeepCopy())
		maps.DeleteFunc(free, func(name corev1.ResourceName, q resource.Quantity) bool {
			return q.IsZero() && resources.Class(name) != nil
		})
		out[n.Name] = free
	}
	for _, p := range pods {
		if free := out[p.Spec.NodeName]; free != nil && !waiting.Ended(p) {
			free.take(requests(p))
		}
	}
	return out
}
