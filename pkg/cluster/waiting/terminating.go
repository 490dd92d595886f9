// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Overdue says why a pod that is being deleted keeps its devices, and for how long it has been. It is empty for a pod
// that is within its grace period. The node is nil if it does not exist or was not read, which complete decides.
func Overdue(pod *corev1.Pod, node *corev1.Node, complete bool, now time.Time) (why string, since time.Duration) {
	if pod.DeletionTimestamp == nil || now.Before(pod.DeletionTimestamp.Time) {
		return "", 0
	}
	grace := time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second
	since = now.Sub(pod.DeletionTimestamp.Time) + grace
	name := pod.Spec.NodeName
	switch {
	case len(pod.Finalizers) > 0:
		return fmt.Sprintf("its finalizer %s must be removed by its owner", strings.Join(pod.Finalizers, ", ")), since
	case node == nil && complete && name != "":
		return fmt.Sprintf("its node %s does not exist, and Kubernetes deletes it in some minutes", name), since
	case node != nil && !Ready(node):
		return fmt.Sprintf("its node %s is not ready: start the node's kubelet, or give the node the taint "+
			"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute if the machine is off", name), since
	}
	return fmt.Sprintf("see its Events and the kubelet's log on node %s", name), since
}

// Ready reports whether a node is ready, or does not say.
func Ready(node *corev1.Node) bool {
	return !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
	})
}
