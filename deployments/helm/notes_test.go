// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// notesMap renders the text that Helm prints after installing, through a ConfigMap, because helm template leaves it
// out.
const notesMap = `apiVersion: v1
kind: ConfigMap
metadata:
  name: notes
data:
  notes: |
    {{- tpl (.Files.Get "notes.txt") . | nindent 4 }}
`

func notes(t *testing.T, set string) string {
	t.Helper()
	return notesOn(t, "v1.36.3", set)
}

// notesOn renders the notes for a version of Kubernetes.
func notesOn(t *testing.T, version, set string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), chart)
	if err := os.CopyFS(dir, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "templates", "NOTES.txt"), filepath.Join(dir, "notes.txt")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "templates", "notes.yaml"), []byte(notesMap), 0o644); err != nil {
		t.Fatal(err)
	}
	var m corev1.ConfigMap
	if err := yaml.Unmarshal([]byte(render(t, dir, "--show-only", "templates/notes.yaml", "--kube-version", version, "--set", set)), &m); err != nil {
		t.Fatal(err)
	}
	return m.Data["notes"]
}

// TestNotes_ValueWithoutEffect_Explained checks that the notes explain a value without effect, only if it is set.
func TestNotes_ValueWithoutEffect_Explained(t *testing.T) {
	for _, c := range []struct{ set, names string }{
		{"resources.computeDomains.enabled=true", "resources.computeDomains.enabled"},
		{"gpuResourcesEnabledOverride=true", "gpuResourcesEnabledOverride"},
		{"featureGates.TimeSlicingSettings=true", "TimeSlicingSettings"},
		{"webhook.replicas=2", "  webhook.replicas"},
		{"controller.metrics.profilePath=/debug", "  controller.metrics.profilePath"},
		{"kubeletPlugin.metrics.computeDomainHttpEndpoint=:8081", "computeDomainHttpEndpoint"},
	} {
		if got := notes(t, c.set); !strings.Contains(got, c.names) || strings.Count(got, "NOTE: ") != 1 {
			t.Errorf("--set %s:\n%s", c.set, got)
		}
	}
	plain := notes(t, "nameOverride=")
	if strings.Contains(plain, "NOTE: ") || strings.Contains(plain, "WARNING") {
		t.Errorf("defaults:\n%s", plain)
	}
	for _, word := range []string{"rollout status daemonset/gpu-dra-driver-kubelet-plugin", "nvidia.com/gpu", "privileged", "refused while the controller", "helm test gpu-dra-driver"} {
		if !strings.Contains(plain, word) {
			t.Errorf("defaults do not say %q:\n%s", word, plain)
		}
	}
	if got := notes(t, "admissionPolicy.enabled=false"); !strings.Contains(got, "WARNING: admissionPolicy.enabled") {
		t.Errorf("without the policy:\n%s", got)
	}
	if got := notes(t, "resources.gpus.enabled=false"); !strings.Contains(got, "nothing was installed") {
		t.Errorf("off:\n%s", got)
	}
}

// TestNotes_SchedulerFault_NamesVersionAndUpgrade compares the notes with the table for each version, and for the setting.
func TestNotes_SchedulerFault_NamesVersionAndUpgrade(t *testing.T) {
	for _, c := range []struct{ server, setting, faultsOf string }{
		{"v1.34.9", "", ""}, {"v1.35.4", "", ""}, {"v1.36.0", "", "v1.36.0"}, {"v1.36.1", "", "v1.36.1"}, {"v1.36.2", "", "v1.36.2"},
		{"v1.36.3", "", ""}, {"v1.36.11", "", ""}, {"v1.37.0", "", ""}, {"v1.36.1-gke.100", "", "v1.36.1"}, {"v1.36.1+k3s1", "", "v1.36.1"},
		{"v1.36.1", "v1.36.3", ""}, {"v1.36.3", "v1.36.1", "v1.36.1"},
		// helm template cuts --kube-version off; helm install does not.
		{"v1.37.1", "v1.36.1-gke.100", "v1.36.1"}, {"v1.37.1", "v1.36.2-rc.0", "v1.36.1"}, {"v1.37.1", "v1.37.0-alpha.1", "v1.36.0"}, {"v1.36.1", "v1.36.3+k3s1", ""},
	} {
		got := notesOn(t, c.server, "schedulerVersion="+c.setting)
		want := 0
		if c.faultsOf != "" {
			v, err := schedulerfault.Parse(c.faultsOf)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range schedulerfault.Of(v, schedulerfault.Features{Counters: true, Shares: true}) {
				want++
				for _, word := range []string{"- until " + f.Upgrade() + ": " + f.Text + ".\n  The driver's answer: " + f.Consequence() + ".\n", "has known faults:\n- until", "set schedulerVersion to it"} {
					if !strings.Contains(got, word) {
						t.Errorf("%s, setting %q: the notes do not say %q:\n%s", c.server, c.setting, word, got)
					}
				}
			}
		}
		if n := strings.Count(got, "- until "); n != want || want == 0 && strings.Contains(got, "WARNING") {
			t.Errorf("%s, setting %q: the notes have %d faults, want %d:\n%s", c.server, c.setting, n, want, got)
		}
	}
}

// TestNotes_ComponentOff_NotMentioned checks the notes without the disabled component.
func TestNotes_ComponentOff_NotMentioned(t *testing.T) {
	for _, c := range []struct {
		set            string
		webhook, fails bool
		test           bool
	}{
		{"nameOverride=", true, true, true},
		{"webhook.failurePolicy=Ignore", true, false, true},
		{"webhook.enabled=false", false, false, true},
		{"controller.enabled=false", false, false, false},
		{"resources.gpus.enabled=false", false, false, false},
	} {
		got := notes(t, c.set)
		if strings.Contains(got, "are checked when they are") != c.webhook || strings.Contains(got, "refused while") != c.fails || strings.Contains(got, "helm test") != c.test {
			t.Errorf("--set %s:\n%s", c.set, got)
		}
	}
}
