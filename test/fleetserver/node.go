// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package fleetserver

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newNode returns a Node with as much metadata as a real GPU node: from the kubelet, the cloud and feature discovery.
func newNode(node int) *corev1.Node {
	name := NodeName(node)
	labels := map[string]string{
		"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
		"topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", node%3), "node.kubernetes.io/instance-type": "gpu-8",
	}
	for i := range 40 {
		labels[fmt.Sprintf("feature.node.kubernetes.io/cpu-cpuid.FEATURE%02d", i)] = "true"
	}
	var all []string
	for label := range labels {
		all = append(all, fmt.Sprintf("%q:{}", "f:"+label))
	}
	fields := `{"f:metadata":{"f:labels":{` + strings.Join(all, ",") + `}}}`
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: labels, CreationTimestamp: metav1.NewTime(time.Now()),
		Annotations:   map[string]string{"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}},
	}}
}
