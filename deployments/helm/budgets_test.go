// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

func TestBudgetPolicies_NamespaceWithoutLabel_Denied(t *testing.T) {
	all := loadPolicies(t, "budgets.yaml")
	for name, p := range all {
		p.typeChecks(t)
		if !slices.ContainsFunc(p.spec.MatchConditions, isInstalled) {
			t.Errorf("policy %s denies without the driver's namespace", name)
		}
	}
	for labels, denied := range map[string]bool{"{gpu.nvidia.com/budget: 'true'}": false, "{gpu.nvidia.com/budget: 'false'}": true, "{}": true, "null": true} {
		in := map[string]any{"namespaceObject": object(t, "{metadata: {name: team-a, labels: "+labels+"}}"), "object": map[string]any{}, "request": map[string]any{}}
		if labels == "null" {
			in["namespaceObject"] = object(t, "{metadata: {name: team-a}}")
		}
		_, text := all["budgets"].decide(t, in)
		if (text != "") != denied || denied && !strings.HasSuffix(text, "kubectl label namespace team-a gpu.nvidia.com/budget=true") {
			t.Errorf("a budget in a namespace with the labels %s: %q", labels, text)
		}
	}
	claims := all["budgets-claims"]
	if _, text := claims.decide(t, map[string]any{"request": map[string]any{"namespace": "team-a"}}); !strings.HasSuffix(text, "kubectl label namespace team-a gpu.nvidia.com/budget=true") {
		t.Errorf("a claim: %q", text)
	}
	if s := claims.spec; *s.FailurePolicy != admissionv1.Ignore || s.ParamKind.Kind != "GPUBudget" || s.MatchConstraints.NamespaceSelector.MatchExpressions[0].Key != "gpu.nvidia.com/budget" {
		t.Errorf("%+v", s)
	}
}

// TestBudgets_SwitchedOff_LeaveNothing also covers values of a release without budgets.
func TestBudgets_SwitchedOff_LeaveNothing(t *testing.T) {
	for _, set := range []string{"budgets.enabled=false", "webhook.enabled=false", "controller.enabled=false", "resources.gpus.enabled=false"} {
		if got := render(t, chart, "--set", set); strings.Contains(got, "gpubudget") || strings.Contains(got, "/budget") || strings.Contains(got, "BUDGETS") {
			t.Errorf("--set %s: the manifests have budgets", set)
		}
	}
	// An upgrade with --reuse-values lacks the value.
	if got := render(t, chart, "--set", "budgets=null"); !strings.Contains(got, "gpubudgets.gpu.nvidia.com") {
		t.Error("without the value, the manifests have no budgets")
	}
}

// TestBudgetSchema_Amounts_AreQuantities compares the patterns with the parser of quantities.
func TestBudgetSchema_Amounts_AreQuantities(t *testing.T) {
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema struct {
						Properties map[string]struct {
							Properties map[string]struct {
								Properties map[string]struct{ Pattern string }
							}
						}
					} `json:"openAPIV3Schema"`
				}
			}
		}
	}
	for doc := range strings.SplitSeq(render(t, chart, "--show-only", "templates/budgets.yaml"), "\n---\n") {
		if strings.Contains(doc, "kind: CustomResourceDefinition") {
			if err := yaml.Unmarshal([]byte(doc), &crd); err != nil {
				t.Fatal(err)
			}
		}
	}
	amounts := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["hard"].Properties
	for field, values := range map[string]map[string]bool{
		"gpus": {
			"0": true, "8": true, "500m": true, "0.125": true, "1.5": true, "9999999": true, "-1": false, "0.0001": false, "1k": false, "1e3": false, "": false, "8 ": false, ".5": false,
		},
		"memory": {
			"0": true, "640Gi": true, "1.5Ti": true, "85899345920": true, "2P": true, "80G": true, "-1Gi": false, "1Ei": false, "1e30": false, "9999P": false, "500m": false, "80GB": false, "": false,
		},
	} {
		pattern := regexp.MustCompile(amounts[field].Pattern)
		for value, valid := range values {
			if pattern.MatchString(value) != valid {
				t.Errorf("%s: %q is valid: %v", field, value, !valid)
			}
			q, err := resource.ParseQuantity(value)
			if n := q.Value(); valid && (err != nil || n < 0 || n > 1<<60) {
				t.Errorf("%s: %q is %d: %v", field, value, n, err)
			}
		}
	}
}
