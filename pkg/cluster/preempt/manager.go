// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/pack"
)

const (
	// knownFor is the time for which the answer holds whether a manager exists, and mostAsked the number of managers
	// that are looked up in one search. A pod whose manager was not looked up yet has one.
	knownFor, mostAsked = 10 * time.Minute, 100
)

var (
	workloads = schema.GroupResource{Group: "kueue.x-k8s.io", Resource: "workloads"}
	volcano   = schema.GroupResource{Group: "scheduling.volcano.sh", Resource: "podgroups"}
	// named are the labels and annotations of a pod whose value is the name of its manager.
	named = map[string]schema.GroupResource{
		"kueue.x-k8s.io/workload":          workloads,
		"kueue.x-k8s.io/pod-group-name":    workloads,
		"scheduling.x-k8s.io/pod-group":    {Group: "scheduling.x-k8s.io", Resource: "podgroups"},
		"pod-group.scheduling.sigs.k8s.io": {Group: "scheduling.sigs.k8s.io", Resource: "podgroups"},
		"scheduling.k8s.io/group-name":     volcano,
		"scheduling.volcano.sh/group-name": volcano,
	}
)

// manager is an object that decides about pods besides the scheduler: one with a name, or any that a selector finds.
type manager struct {
	schema.GroupResource
	namespace, name, selector string
}

// managersOf returns the managers that a pod can have. Its own labels name most of them.
func managersOf(pod *corev1.Pod) (out []manager) {
	add := func(r schema.GroupResource, name string) {
		if len(validation.IsDNS1123Subdomain(name)) == 0 { // No object has another name, and the client refuses some.
			out = append(out, manager{r, pod.Namespace, name, ""})
		}
	}
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		add(schema.GroupResource{Group: "scheduling.k8s.io", Resource: "podgroups"}, *g.PodGroupName)
	}
	for key, r := range named {
		add(r, pod.Labels[key])
		add(r, pod.Annotations[key])
	}
	ids := []types.UID{pod.UID}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		ids = append(ids, owner.UID)
	}
	for _, id := range ids {
		if len(validation.IsValidLabelValue(string(id))) == 0 {
			out = append(out, manager{workloads, pod.Namespace, "", "kueue.x-k8s.io/job-uid=" + string(id)})
		}
	}
	return out
}

// ordinary returns the pods on nodes that have a mark of Kueue or of a gang, but no such manager: anyone can write a
// label. Only pods with devices are looked up whose priority is lower than that of a pod.
func (k *Keeper) ordinary(
	ctx context.Context, objects controller.Objects, of *corev1.Pod, nodes []*corev1.Node, now time.Time,
) sets.Set[types.UID] {
	names := sets.New[string]()
	for _, n := range nodes {
		names.Insert(n.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	maps.DeleteFunc(k.managers, func(_ manager, a known) bool { return !now.Before(a.until) })
	out, holders := sets.New[types.UID](), users(objects.Claims)
	l := lookup{Keeper: k, now: now}
	for _, pod := range objects.Pods {
		if names.Has(pod.Spec.NodeName) && holders.Has(pod.UID) && pack.Priority(pod) < pack.Priority(of) &&
			pack.Apart(pod) != "" && !l.managed(ctx, pod) {
			out.Insert(pod.UID)
		}
	}
	if l.err != nil {
		klog.FromContext(ctx).Error(l.err, "Cannot read Workloads or PodGroups, so pods with their labels are not "+
			"evicted. The chart value preemption.exemptGroups grants the right, or ends the exemption")
	}
	return out
}

// known is the answer whether a manager exists.
type known struct {
	exists bool
	until  time.Time
}

// lookup asks for managers in one search.
type lookup struct {
	*Keeper
	now    time.Time
	asked  int
	served map[string][]string
	err    error
}

// managed reports whether a pod has a manager, as far as that can be read.
func (l *lookup) managed(ctx context.Context, pod *corev1.Pod) bool {
	if l.o.Groups == nil {
		return false
	}
	for _, m := range managersOf(pod) {
		answer, found := l.managers[m]
		if !found && l.asked == mostAsked {
			return true
		}
		if !found {
			l.asked++
			exists, err := l.exists(ctx, m)
			answer = known{exists, l.now.Add(knownFor)}
			if err != nil {
				answer = known{true, l.now.Add(again)}
				l.err = fmt.Errorf("look for a manager of pods in namespace %s: %w", m.namespace, err)
			}
			l.managers[m] = answer
		}
		if answer.exists {
			return true
		}
	}
	return false
}

// exists asks in all versions of the API group: the newest ones need not have the kind.
func (l *lookup) exists(ctx context.Context, m manager) (bool, error) {
	if l.served == nil {
		groups, err := l.client.Discovery().ServerGroupsWithContext(ctx)
		if err != nil {
			return false, err
		}
		l.served = map[string][]string{}
		for _, g := range groups.Groups {
			for _, v := range g.Versions {
				l.served[g.Name] = append(l.served[g.Name], v.Version)
			}
		}
	}
	for _, version := range l.served[m.Group] {
		r := l.o.Groups.Resource(m.WithVersion(version)).Namespace(m.namespace)
		if m.name != "" {
			if _, err := r.Get(ctx, m.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return err == nil, err
			}
			continue
		}
		all, err := r.List(ctx, metav1.ListOptions{LabelSelector: m.selector, Limit: 1})
		if !apierrors.IsNotFound(err) && (err != nil || len(all.Items) > 0) {
			return err == nil, err
		}
	}
	return false, nil
}
