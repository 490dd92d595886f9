// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Holder is a pod that holds devices.
type Holder struct {
	// Pod is nil if it does not exist, or could not be read because of Err.
	Pod *corev1.Pod
	Err error
	// Owner is the object that keeps the pod running, or nil: its Deployment instead of its ReplicaSet, and its CronJob
	// instead of its Job, if these could be read.
	Owner *metav1.OwnerReference
}

// maxHolders limits the requests for an answer.
const maxHolders = 16

// Holders reads pods and their owners, of the first names only.
func Holders(
	ctx context.Context, client kubernetes.Interface, names []types.NamespacedName,
) map[types.NamespacedName]Holder {
	out := map[types.NamespacedName]Holder{}
	for _, name := range names[:min(len(names), maxHolders)] {
		pod, err := client.CoreV1().Pods(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			out[name] = Holder{Pod: pod, Owner: Owner(ctx, client, pod)}
		case apierrors.IsNotFound(err):
			out[name] = Holder{}
		default:
			out[name] = Holder{Err: err}
		}
	}
	return out
}

// Owner returns the owner of a pod, as in Holder. It is nil for no pod.
func Owner(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) *metav1.OwnerReference {
	if pod == nil || metav1.GetControllerOf(pod) == nil {
		return nil
	}
	owner := metav1.GetControllerOf(pod)
	var above metav1.Object
	var err error
	switch owner.Kind {
	case "ReplicaSet":
		above, err = client.AppsV1().ReplicaSets(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	case "Job":
		above, err = client.BatchV1().Jobs(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	default:
		return owner
	}
	if err == nil {
		if top := metav1.GetControllerOf(above); top != nil {
			return top
		}
	}
	return owner
}
