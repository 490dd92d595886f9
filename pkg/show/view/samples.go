// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Samples are the metrics of one pod of the driver, by name. Histograms are left out.
type Samples map[string][]Sample

// Sample is one series of a metric.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// maxSamples bounds the size of a pod's metrics. A plugin with two hundred claims has 0.3 MB.
const maxSamples = 16 << 20

// ReadSamples parses the text format of Prometheus.
func ReadSamples(r io.Reader) (Samples, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxSamples+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSamples {
		return nil, fmt.Errorf("the metrics have more than %d MiB", maxSamples>>20)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	out := Samples{}
	for name, family := range families {
		for _, m := range family.Metric {
			s := Sample{Labels: map[string]string{}}
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				s.Value = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				s.Value = m.GetGauge().GetValue()
			case dto.MetricType_UNTYPED:
				s.Value = m.GetUntyped().GetValue()
			default:
				continue
			}
			for _, l := range m.Label {
				s.Labels[l.GetName()] = l.GetValue()
			}
			out[name] = append(out[name], s)
		}
	}
	return out, nil
}

// value returns the value of a metric without labels, or nil.
func (s Samples) value(name string) *float64 {
	if len(s[name]) == 0 {
		return nil
	}
	return &s[name][0].Value
}

// Endpoint is the place of a pod's metrics.
type Endpoint struct{ Port, Path string }

// MetricsEndpoint returns the place of the metrics of a pod of the driver. ok is false if the pod serves none.
func MetricsEndpoint(p corev1.Pod) (e Endpoint, ok bool) {
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if port.Name != "metrics" {
				continue
			}
			e = Endpoint{fmt.Sprint(port.ContainerPort), "/metrics"}
			for _, v := range c.Env {
				if v.Name == "METRICS_PATH" {
					e.Path = v.Value
				}
			}
			if e.Path == "" {
				return e, false
			}
			e.Path = path.Clean("/" + e.Path) // Dots would lead out of the pod, to any object of the API.
			return e, true
		}
	}
	return e, false
}

// ControllerPods returns the pods of the controller. Only the leader serves some metrics, and pods can share a node.
func ControllerPods(pods []corev1.Pod) []corev1.Pod {
	return slices.DeleteFunc(running(pods, controllerPods), func(p corev1.Pod) bool { return p.Spec.NodeName == "" })
}

// DriverPods returns all pods of the driver, by namespace and name.
func DriverPods(pods []corev1.Pod) (out []corev1.Pod) {
	component := components(pods)
	for _, p := range pods {
		if component(p) != "" {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// ChartSelector selects the objects of the driver's chart by label. The driver's pods show the name that overrides its
// own.
func ChartSelector(pods []corev1.Pod) string {
	names := sets.New(chartName)
	for _, p := range DriverPods(pods) {
		if name := p.Labels[nameLabel]; name != "" {
			names.Insert(name)
		}
	}
	return nameLabel + " in (" + strings.Join(sets.List(names), ",") + ")"
}

// IsController reports whether one of DriverPods runs the controller.
func IsController(p corev1.Pod) bool { return labelled(p) == controllerPods }

// PluginPods returns the driver's plugin of each node: the newest pod that is ready, or else the newest.
func PluginPods(pods []corev1.Pod) (out []corev1.Pod) {
	on := byNode(running(pods, pluginPods))
	for _, node := range slices.Sorted(maps.Keys(on)) {
		out = append(out, slices.MaxFunc(on[node], func(a, b corev1.Pod) int {
			switch {
			case ready(a) == ready(b):
				return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
			case ready(a):
				return 1
			}
			return -1
		}))
	}
	return out
}
