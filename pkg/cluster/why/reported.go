// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
)

// schedulingFailed is the reason of the scheduler's Events.
const schedulingFailed = "FailedScheduling"

// lastWord returns the last message of the scheduler about a pod, and its time. It is empty if there is none.
func (c *Cluster) lastWord(pod *corev1.Pod) (message string, at time.Time) {
	if said := waiting.SaidOf(pod); said.Tried {
		message, at = said.Message, said.At
	}
	for _, e := range c.Events {
		if e != nil && e.Reason == schedulingFailed && !Seen(e).Before(at) {
			message, at = cmp.Or(waiting.SaidOf(pod).Message, e.Message), Seen(e)
		}
	}
	return message, at
}

const (
	// firstWord is the time that a scheduler has for a new pod.
	firstWord = 30 * time.Second
	// lastWordAge is the age up to which a scheduler's word about a pod shows that it works. It tries each waiting pod
	// again every five minutes. Events of a series are written every half an hour.
	lastWordAge = time.Hour
)

// silence says how long the scheduler of a pod has said nothing about it, if it should have.
func (a *asker) silence(pod *corev1.Pod) string {
	if pod == nil || pod.CreationTimestamp.IsZero() || a.Now.Sub(pod.CreationTimestamp.Time) < firstWord {
		return ""
	}
	name := cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName)
	_, at := a.lastWord(pod)
	switch {
	case at.IsZero():
		return fmt.Sprintf("its scheduler %s has not looked at it for %s: see whether it runs", name,
			age(a.Now.Sub(pod.CreationTimestamp.Time)))
	case a.Now.Sub(at) > lastWordAge && a.Complete(read.Events):
		return fmt.Sprintf("the last word of its scheduler %s about it is %s old: see whether it runs", name,
			age(a.Now.Sub(at)))
	}
	return ""
}

// otherReasons returns the parts of the scheduler's last message about a pod that are not about devices: CPU, volumes,
// ports. There are none without a pod. The prefix is for a fresh message.
func (a *asker) otherReasons(prefix string, pod *corev1.Pod) (out []Reason) {
	if pod == nil {
		return nil
	}
	message, at := a.lastWord(pod)
	if old := a.Now.Sub(at); !at.IsZero() && old > lastWordAge {
		prefix = fmt.Sprintf("the scheduler reported %s ago: ", age(old))
	}
	// The form is `0/3 nodes are available: 1 Insufficient cpu, 2 cannot allocate all claims. preemption: …`.
	_, after, found := strings.Cut(message, "nodes are available: ")
	if !found {
		if message != "" {
			return []Reason{{Text: prefix + ask.Brief(message)}}
		}
		return nil
	}
	after, _, _ = strings.Cut(after, " preemption:")
	for _, part := range strings.Split(strings.TrimSuffix(strings.TrimSpace(after), "."), ", ") {
		if !explained(part) {
			out = append(out, Reason{Text: prefix + ask.Brief(part)})
		}
	}
	return out
}

// startFailures returns what a node reports of a pod that it does not start: of each reason the last Event, oldest
// first. There are none without a scheduled pod.
func startFailures(pod *corev1.Pod, events []*corev1.Event, now time.Time) (out []Reason) {
	if pod == nil || pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodPending {
		return nil
	}
	last := map[string]*corev1.Event{}
	for _, e := range events {
		if e == nil || e.Reason == schedulingFailed || e.Reason == EventReason || e.Reason == LacksReason {
			continue
		}
		if other := last[e.Reason]; other == nil || Seen(other).Before(Seen(e)) {
			last[e.Reason] = e
		}
	}
	byAge := func(a, b *corev1.Event) int { return cmp.Or(Seen(a).Compare(Seen(b)), cmp.Compare(a.Reason, b.Reason)) }
	for _, e := range slices.SortedFunc(maps.Values(last), byAge) {
		message := strings.Join(strings.Fields(e.Message), " ")
		out = append(out, Reason{Text: fmt.Sprintf("%s, %s ago: %s", e.Reason, age(now.Sub(Seen(e))), message)})
	}
	return out
}

// Seen returns the time of an Event's last occurrence.
func Seen(e *corev1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	return cmp.Or(e.LastTimestamp, metav1.Time(e.EventTime), e.CreationTimestamp).Time
}

// explained reports whether the answer explains this part of the scheduler's message better.
func explained(part string) bool {
	return slices.ContainsFunc([]string{
		"cannot allocate all claims", "node affinity/selector", "untolerated taint", "were unschedulable",
		"resourceclaim not available",
	}, func(text string) bool { return strings.Contains(part, text) })
}
