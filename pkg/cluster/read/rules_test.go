// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestTaintRules_OddRuleOrError_IsAnError(t *testing.T) {
	rule := func(name string, spec any) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": map[string]any{"name": name}, "spec": spec,
		}}
	}
	good := map[string]any{"taint": map[string]any{"key": "k", "effect": "NoSchedule"}}
	for name, c := range map[string]struct {
		objects []runtime.Object
		fails   error // of each list
		rules   int
		version string
		err     string
	}{
		"good rules":         {[]runtime.Object{rule("a", good), rule("b", good)}, nil, 2, "v1beta2", ""},
		"one cannot be read": {[]runtime.Object{rule("a", good), rule("odd", map[string]any{"taint": "all"})}, nil, 1, "v1beta2", "odd"},
		"no answer":          {nil, errors.New("connection refused"), 0, "", "refused"},
		"no version":         {nil, apierrors.NewNotFound(schema.GroupResource{}, "rules"), 0, "", ""},
	} {
		lists := map[schema.GroupVersionResource]string{}
		for _, v := range RuleVersions {
			lists[RuleResource(v)] = "DeviceTaintRuleList"
		}
		client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, c.objects...)
		client.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if c.fails == nil && a.GetResource().Version == "v1" {
				return true, nil, apierrors.NewNotFound(schema.GroupResource{}, "rules") // An older server.
			}
			return c.fails != nil, nil, c.fails
		})
		rules, version, err := TaintRules(t.Context(), client)
		if len(rules) != c.rules || version != c.version || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %d rules of version %q, %v", name, len(rules), version, err)
		}
	}
}

// TestRules_AskedOften_ReadsSeldom has a server that fails once.
func TestRules_AskedOften_ReadsSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists := map[schema.GroupVersionResource]string{}
		for _, v := range RuleVersions {
			lists[RuleResource(v)] = "DeviceTaintRuleList"
		}
		client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
		requests := 0
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			requests++
			return requests == 1, nil, errors.New("connection refused")
		})
		rules := NewRules(client)
		for step, fails := range []bool{true, true, false, false} {
			if step == 2 {
				time.Sleep(freshFor)
			}
			if _, err := rules.All(t.Context()); (err != nil) != fails {
				t.Errorf("step %d: %v", step, err)
			}
		}
		if requests != 2 {
			t.Errorf("%d requests", requests)
		}
	})
}
