//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
)

// monitor is a PodMonitor or a ServiceMonitor, with the fields that the chart sets.
type monitor struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		Selector struct {
			MatchLabels map[string]string
		}
		PodMetricsEndpoints, Endpoints []struct {
			Port, Path  string
			HonorLabels bool
		}
	}
}

type object = map[string]any

// scrape returns a configuration with the pods that the monitor selects now, and with the labels that Prometheus' operator adds.
// Debian's Prometheus does not discover pods itself.
func (m monitor) scrape(ctx context.Context, e *env.Env) (object, error) {
	endpoints := m.Spec.PodMetricsEndpoints
	selected := func(labels map[string]string) metav1.ListOptions {
		return metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: labels})}
	}
	options := selected(m.Spec.Selector.MatchLabels)
	if m.Kind == "ServiceMonitor" {
		services, err := e.Client.CoreV1().Services(m.Metadata.Namespace).List(ctx, options)
		if err != nil || len(services.Items) != 1 {
			return nil, fmt.Errorf("%s selects %d Services, not 1: %w", m.Metadata.Name, len(services.Items), err)
		}
		options, endpoints = selected(services.Items[0].Spec.Selector), m.Spec.Endpoints
	}
	pods, err := e.Client.CoreV1().Pods(m.Metadata.Namespace).List(ctx, options)
	if err != nil || len(pods.Items) == 0 {
		return nil, fmt.Errorf("%s selects no pods: %w", m.Metadata.Name, err)
	}
	var targets []any
	for _, p := range pods.Items {
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				if port.Name == endpoints[0].Port {
					address := fmt.Sprintf("%s:%d", p.Status.PodIP, port.ContainerPort)
					targets = append(targets, object{"targets": []string{address}, "labels": object{
						"namespace": p.Namespace, "pod": p.Name, "container": c.Name, "endpoint": port.Name,
						"job": m.Metadata.Namespace + "/" + m.Metadata.Name,
					}})
				}
			}
		}
	}
	return object{
		"job_name": m.Kind + "/" + m.Metadata.Name, "honor_labels": endpoints[0].HonorLabels,
		"metrics_path": endpoints[0].Path, "static_configs": targets,
	}, nil
}
