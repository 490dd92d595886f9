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
	if err := yaml.Unmarshal([]byte(render(t, dir, "--show-only", "templates/notes.yaml", "--set", set)), &m); err != nil {
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
