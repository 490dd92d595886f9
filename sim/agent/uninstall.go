// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Uninstall deletes the DaemonSet and waits until its pods, which remove their machines, are gone. An error names the nodes of the
// others.
func Uninstall(ctx context.Context, sets typedappsv1.DaemonSetInterface, pods typedcorev1.PodInterface, name string, poll time.Duration) error {
	ds, err := sets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the DaemonSet %s: %w", name, err)
	}
	foreground := metav1.DeletePropagationForeground
	if err := sets.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the DaemonSet %s: %w", name, err)
	}
	selector := metav1.FormatLabelSelector(ds.Spec.Selector)
	var nodes []string
	for {
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err == nil {
			nodes = nil
			for _, p := range list.Items {
				if metav1.IsControlledBy(&p, ds) {
					nodes = append(nodes, p.Spec.NodeName)
				}
			}
			if len(nodes) == 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			slices.Sort(nodes)
			return errors.Join(fmt.Errorf("the simulator's pods of these nodes did not end: %s; their machines can stay: see docs/simulator.md",
				strings.Join(nodes, ", ")), err)
		case <-time.After(poll):
		}
	}
}
