// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/read"
)

// TestFindings_SchedulerFault_NamesPatchAndRemedy has API servers of several versions, and the plugins' setting.
func TestFindings_SchedulerFault_NamesPatchAndRemedy(t *testing.T) {
	for name, c := range map[string]struct {
		server, setting string
		slices          bool // They have counters and shared devices.
		want            []string
	}{
		"right":           {"v1.36.3", "", true, nil},
		"unread":          {"", "", true, []string{"were not checked", "no answer", "/version"}},
		"wrong":           {"v1.36.1+k3s1", "", false, []string{"v1.36.1+k3s1", "crashes the scheduler", "no partitions or NVLink groups", "1.36.2 or newer", "schedulerVersion"}},
		"reported only":   {"v1.36.2", "", true, []string{"firstAvailable", "reported only", "1.36.3 or newer"}},
		"off by default":  {"v1.35.4", "", false, nil},
		"on":              {"v1.35.4", "", true, []string{"Kubernetes v1.35.4", "1.35.6 or newer"}},
		"no version":      {"nonsense", "", false, []string{"nonsense", "Set the chart value schedulerVersion"}},
		"newer scheduler": {"v1.36.1", "v1.36.3", true, nil},
		"older scheduler": {"v1.36.3", "v1.36.1", true, []string{"Kubernetes v1.36.1"}},
		"setting, unread": {"", "v1.36.1", true, []string{"Kubernetes v1.36.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := Diagnosis{Objects: Objects{States: read.States{read.Pods: nil}}, ServerVersion: c.server}
			if c.server == "" {
				d.ServerVersionError = errors.New("no answer")
			}
			if c.setting != "" {
				d.Pods = []corev1.Pod{{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{nameLabel: chartName, componentLabel: pluginPods}},
					Spec: corev1.PodSpec{
						HostPID: true, Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins_registry"}}}},
						Containers: []corev1.Container{{Env: []corev1.EnvVar{{Name: schedulerVersionVariable, Value: c.setting}}}}},
				}}
			}
			var out findings
			d.scheduler(&out, c.slices, c.slices)
			var text strings.Builder
			for _, f := range out {
				if f.Level != Warning || f.Subject != "scheduler" {
					t.Errorf("%+v", f)
				}
				text.WriteString(f.Message + "\n")
			}
			if (len(out) > 0) != (len(c.want) > 0) {
				t.Errorf("found %q, want %q", text.String(), c.want)
			}
			for _, want := range c.want {
				if !strings.Contains(text.String(), want) {
					t.Errorf("%q does not say %q", text.String(), want)
				}
			}
		})
	}
}
