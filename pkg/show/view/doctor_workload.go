// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
)

// starts are the reasons of containers that wait for a moment.
var starts = []string{"ContainerCreating", "PodInitializing"}

const (
	// restartsShown is the number of restarts from which a pod that is ready is reported.
	restartsShown = 3
	// restartAge is the age up to which its last restart counts.
	restartAge = 24 * time.Hour
)

// ailment says why a pod of the driver does not work, or "". weak means that it works only between restarts.
func (d Diagnosis) ailment(p corev1.Pod) (text string, weak bool) {
	if why, since := d.overdue(&p); since > stuckAfter {
		return fmt.Sprintf("it has been terminating for %s: %s", duration.HumanDuration(since), why), true
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "no node takes it: " + c.Message, false
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		last := c.LastTerminationState.Terminated
		switch w := c.State.Waiting; {
		case last != nil && c.RestartCount > 0:
			text = fmt.Sprintf("its container %s has %d restarts, the last after %s (exit code %d) %s ago: kubectl "+
				"-n %s logs %s -c %[1]s --previous", c.Name, c.RestartCount, last.Reason, last.ExitCode,
				duration.HumanDuration(d.Now.Sub(last.FinishedAt.Time)), p.Namespace, p.Name)
			return text, c.RestartCount >= restartsShown && d.Now.Sub(last.FinishedAt.Time) < restartAge
		case w != nil && !slices.Contains(starts, w.Reason):
			return fmt.Sprintf("its container %s waits with %s: %s", c.Name, w.Reason, w.Message), false
		case c.State.Running != nil && !c.Ready:
			text = fmt.Sprintf("see its log: kubectl -n %s logs %s -c %s", p.Namespace, p.Name, c.Name)
		}
	}
	return text, false
}

// ailments says why pods of the driver do not work, as the end of a sentence.
func (d Diagnosis) ailments(pods []corev1.Pod) string {
	for _, p := range pods {
		if text, _ := d.ailment(p); text != "" {
			return ": " + text
		}
	}
	return ""
}

// makers reports a DaemonSet or Deployment of the driver that makes no pods, or too few.
func (d Diagnosis) makers(out *findings) {
	for _, s := range d.DaemonSets {
		if labelledAs(s.Spec.Template) != pluginPods {
			continue
		}
		subject := "DaemonSet " + s.Namespace + "/" + s.Name
		switch want, has := s.Status.DesiredNumberScheduled, s.Status.CurrentNumberScheduled; {
		case want == 0:
			selector := ""
			if of := s.Spec.Template.Spec.NodeSelector; len(of) > 0 {
				selector = " " + labels.FormatLabels(of)
			}
			out.add(Problem, subject, "no node matches its node selector%s, its affinity and its tolerations, so no "+
				"plugin runs. See the chart values kubeletPlugin.nodeSelector, affinity and tolerations", selector)
		case has < want:
			out.add(Problem, subject, "%d of %d plugins exist%s", has, want, d.refused(s))
		}
	}
	for _, w := range d.Deployments {
		if labelledAs(w.Spec.Template) != controllerPods {
			continue
		}
		for _, c := range w.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				out.add(Problem, "Deployment "+w.Namespace+"/"+w.Name, "the API server refuses its pods: %s", c.Message)
			}
		}
	}
}

// labelledAs returns the component of a workload's pods.
func labelledAs(t corev1.PodTemplateSpec) string {
	return labelled(corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec})
}

// refused says why the API server refuses the pods of a DaemonSet, by the last Event about it.
func (d Diagnosis) refused(s appsv1.DaemonSet) string {
	var last *corev1.Event
	for i, e := range d.Refusals {
		if e.InvolvedObject.UID == s.UID && (last == nil || last.LastTimestamp.Before(&e.LastTimestamp)) {
			last = &d.Refusals[i]
		}
	}
	if last == nil {
		return ""
	}
	ago := duration.HumanDuration(d.Now.Sub(last.LastTimestamp.Time))
	return fmt.Sprintf(". The API server refused a pod %s ago: %s", ago, strings.TrimPrefix(last.Message,
		"Error creating: "))
}

// controlPlane reports programs of the control plane that do not renew their Lease.
func (d Diagnosis) controlPlane(out *findings) {
	effects := map[string]string{
		"kube-scheduler":          "pods get no node and claims no devices",
		"kube-controller-manager": "claims of templates are not made, and ended pods keep their claims",
	}
	for _, l := range d.Leases {
		if l.Spec.RenewTime == nil {
			continue
		}
		const clocks = 5 * time.Minute // The clock here can differ.
		limit := max(clocks, 4*time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 15))*time.Second)
		if silent := d.Now.Sub(l.Spec.RenewTime.Time); silent > limit {
			out.add(Problem, "cluster", "%s has not renewed its Lease for %s: %s. Start it, unless it runs without "+
				"leader election", l.Name, duration.HumanDuration(silent), effects[l.Name])
		}
	}
}
