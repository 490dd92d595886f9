// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"encoding/json"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// upgraded returns an object after Helm's upgrade from one manifest to another. Helm's patch contains the manifests'
// differences, and restores fields of the new manifest that another client changed.
func upgraded[T any](t *testing.T, was, becomes, is T) (out T) {
	t.Helper()
	meta, err := strategicpatch.NewPatchMetaFromStruct(is)
	if err != nil {
		t.Fatal(err)
	}
	text := func(v T) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	patch, err := strategicpatch.CreateThreeWayMergePatch(text(was), text(becomes), text(is), meta, true)
	if err != nil {
		t.Fatal(err)
	}
	data, err := strategicpatch.StrategicMergePatchUsingLookupPatchMeta(text(is), patch, meta)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestUpgrade_EverythingChanges_KeepsAuthority checks that the controller's changes of the chart's objects survive an
// upgrade.
func TestUpgrade_EverythingChanges_KeepsAuthority(t *testing.T) {
	was := render(t, chart, "--show-only", "templates/webhook.yaml")
	becomes := strings.ReplaceAll(render(t, chart, "--show-only", "templates/webhook.yaml", "--set", "webhook.failurePolicy=Ignore,nameOverride=other,fullnameOverride=gpu-dra-driver"),
		"timeoutSeconds: 5", "timeoutSeconds: 6")

	configuration := decode[admissionv1.ValidatingWebhookConfiguration](t, was, "ValidatingWebhookConfiguration")["gpu-dra-driver-webhook"]
	told := *configuration.DeepCopy()
	for i := range told.Webhooks {
		told.Webhooks[i].ClientConfig.CABundle = []byte("authority")
		if service := told.Webhooks[i].ClientConfig.Service; service.Path == nil {
			service.Path = new("/budget/secret")
		}
	}
	told.Annotations = map[string]string{"gpu.nvidia.com/newest-path": "/budget/secret"}
	now := upgraded(t, configuration, decode[admissionv1.ValidatingWebhookConfiguration](t, becomes, "ValidatingWebhookConfiguration")[configuration.Name], told)
	if now.Annotations["gpu.nvidia.com/newest-path"] != "/budget/secret" {
		t.Errorf("annotations %v", now.Annotations)
	}
	for i, h := range now.Webhooks {
		if path := told.Webhooks[i].ClientConfig.Service.Path; h.ClientConfig.Service.Path == nil || *h.ClientConfig.Service.Path != *path || *path == "/budget" {
			t.Errorf("%s: path %v, want %s", h.Name, h.ClientConfig.Service.Path, *path)
		}
		if string(h.ClientConfig.CABundle) != "authority" || *h.FailurePolicy != admissionv1.Ignore && !strings.HasPrefix(h.Name, "budget.") {
			t.Errorf("%s: %s, and its authority is %q", h.Name, *h.FailurePolicy, h.ClientConfig.CABundle)
		}
	}
	if len(now.Webhooks) != 4 || *now.Webhooks[0].TimeoutSeconds != 6 {
		t.Errorf("%+v", now.Webhooks)
	}
}
