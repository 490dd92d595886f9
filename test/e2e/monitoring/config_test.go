//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"maps"
	"regexp"
	"slices"
	"strings"
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

var outsideOfLabels = regexp.MustCompile(`[^a-zA-Z0-9_]`)

func keep(regex string, labels ...string) object {
	return object{"action": "keep", "source_labels": labels, "regex": regex}
}

func copied(from, to string) object {
	return object{"source_labels": []string{from}, "target_label": to}
}

// scrape returns the configuration that Prometheus' operator makes of the monitor: discovery through the API server, the
// choice of targets, and their labels.
func (m monitor) scrape(kubeconfig string) object {
	role, selected, port, endpoints := "pod", "__meta_kubernetes_pod_label", "__meta_kubernetes_pod_container_port_name", m.Spec.PodMetricsEndpoints
	relabel := []object{{"action": "drop", "source_labels": []string{"__meta_kubernetes_pod_phase"}, "regex": "(Failed|Succeeded)"}}
	job := object{"target_label": "job", "replacement": m.Metadata.Namespace + "/" + m.Metadata.Name}
	if m.Kind == "ServiceMonitor" {
		role, selected, port, endpoints = "endpointslice", "__meta_kubernetes_service_label", "__meta_kubernetes_endpointslice_port_name", m.Spec.Endpoints
		job = copied("__meta_kubernetes_service_name", "job")
		relabel = append(relabel, copied("__meta_kubernetes_service_name", "service"))
	}
	for _, label := range slices.Sorted(maps.Keys(m.Spec.Selector.MatchLabels)) {
		name := outsideOfLabels.ReplaceAllString(label, "_")
		relabel = append(relabel, keep("("+regexp.QuoteMeta(m.Spec.Selector.MatchLabels[label])+");true", selected+"_"+name, selected+"present_"+name))
	}
	relabel = append(relabel, keep(regexp.QuoteMeta(endpoints[0].Port), port),
		copied("__meta_kubernetes_namespace", "namespace"), copied("__meta_kubernetes_pod_container_name", "container"),
		copied("__meta_kubernetes_pod_name", "pod"), job, object{"target_label": "endpoint", "replacement": endpoints[0].Port})
	return object{
		"job_name":     strings.Join([]string{m.Kind, m.Metadata.Namespace, m.Metadata.Name}, "/"),
		"honor_labels": endpoints[0].HonorLabels, "metrics_path": endpoints[0].Path, "relabel_configs": relabel,
		"kubernetes_sd_configs": []object{{
			"role": role, "kubeconfig_file": kubeconfig, "namespaces": object{"names": []string{m.Metadata.Namespace}},
		}},
	}
}
