//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package values gives the chart values of every kind. It needs an API server, and no driver on it.
package values

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

var cluster *env.Env

func TestMain(m *testing.M) {
	e2etest.Main(m, func(ctx context.Context, c *env.Env) error {
		cluster = c
		_, err := c.Kubectl(ctx, "create", "namespace", env.Namespace)
		return err
	})
}

var must = e2etest.Must

// texts are strings that a field can take wrongly.
var texts = []any{
	"", "A", "a_b", "a.b", "a/b", "it's", `say "x"`, "two words", "a: b", "-a", "a-", "1", "1e3", "true", "/", "/../a", "/a:b", "a\nb", "{{ x }}", "100%", "1000%", "ä",
	strings.Repeat("a", 41), strings.Repeat("a", 64), strings.Repeat("a", 254), "example.com/" + strings.Repeat("a", 50),
}

// kinds are values of each type of the schema.
var kinds = map[string][]any{
	"string": texts, "integer": {-1, 0, 1, 79, 8080, 65535, 65536, 1 << 31, 1 << 40}, "number": {-1, 0, 0.5, 1e300}, "boolean": {true, false},
	"object": {map[string]any{}, map[string]any{"a": "b"}, map[string]any{"a b": "c"}, map[string]any{"a": "b c"}, map[string]any{"A.b/c": "d"}, map[string]any{"": ""}},
	"array":  {[]any{}, []any{""}, []any{"a", "a"}, []any{map[string]any{}}, []any{map[string]any{"name": "A b"}}, []any{map[string]any{"name": "a=b"}}},
}

// candidates returns values of a field: those of its types, its choices, and lists of two choices.
func candidates(root, schema map[string]any) (out []any) {
	if ref, ok := schema["$ref"].(string); ok {
		found, _ := root["definitions"].(map[string]any)[strings.TrimPrefix(ref, "#/definitions/")].(map[string]any)
		return candidates(root, found)
	}
	for _, word := range []string{"anyOf", "oneOf", "allOf"} {
		for _, one := range list(schema[word]) {
			out = append(out, candidates(root, one.(map[string]any))...)
		}
	}
	out = append(out, list(schema["enum"])...)
	for _, kind := range append(list(schema["type"]), schema["type"]) {
		if name, ok := kind.(string); ok {
			out = append(out, kinds[name]...)
		}
	}
	if items, ok := schema["items"].(map[string]any); ok {
		for _, a := range list(items["enum"]) {
			out = append(out, []any{a})
			for _, b := range list(items["enum"]) {
				out = append(out, []any{a, b})
			}
		}
	}
	return out
}

func list(v any) []any {
	out, _ := v.([]any)
	return out
}

// fields calls visit for each field of a schema that is not a section.
func fields(root, schema map[string]any, at []string, visit func(at []string, values []any)) {
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		field, at := properties[name].(map[string]any), append(slices.Clone(at), name)
		if _, section := field["properties"]; section {
			fields(root, field, at, visit)
		} else {
			visit(at, candidates(root, field))
		}
	}
}

// TestChart_AnyValueOfAnyField_RefusedByHelmOrAccepted renders the chart with values of every kind for every field. The API server
// accepts the manifests that Helm renders: otherwise an installation would end in the middle.
func TestChart_AnyValueOfAnyField_RefusedByHelmOrAccepted(t *testing.T) {
	ctx := e2etest.Context(t, 6*time.Minute)
	text, err := os.ReadFile(filepath.Join(cluster.Tree, "deployments/helm/gpu-dra-driver/values.schema.json"))
	must(t, err)
	var schema map[string]any
	must(t, json.Unmarshal(text, &schema))
	s := &server{t: t, accepted: map[string]bool{}}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(t, err)
	config.QPS = -1
	s.dynamic, err = dynamic.NewForConfig(config)
	must(t, err)
	s.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(cluster.Client.Discovery()))
	defaults, err := os.ReadFile(filepath.Join(cluster.Tree, "deployments/helm/gpu-dra-driver/values.yaml"))
	must(t, err)
	var own map[string]any
	must(t, yaml.Unmarshal(defaults, &own))
	compiler := jsonschema.NewCompiler()
	must(t, compiler.AddResource("values.schema.json", schema))
	compiled, err := compiler.Compile("values.schema.json")
	must(t, err)
	// Values that the schema lets through, by field. Helm compiles the schema in the same way.
	var rounds, switches []map[string]any
	refused, fit := 0, 0
	fields(schema, schema, nil, func(at []string, all []any) {
		n := 0
		for _, value := range all {
			if compiled.Validate(plain(t, merged(own, nested(at, value)))) != nil {
				refused++
				continue
			}
			fit++
			// Each round has a value of every field: a rendering takes long. A switch has rounds of its own, because it leaves out
			// the objects with other values.
			if _, is := value.(bool); is {
				switches = append(switches, nested(at, value))
				continue
			}
			for len(rounds) <= n || conflicts(rounds[n], at) {
				if len(rounds) <= n {
					rounds = append(rounds, map[string]any{})
				} else {
					n++
				}
			}
			rounds[n] = merged(rounds[n], nested(at, value))
			n++
		}
	})
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	var try func(values map[string]any)
	try = func(values map[string]any) {
		out, err := s.render(ctx, values)
		if err == nil {
			s.accept(ctx, short(values), out)
			return
		}
		if text := err.Error(); strings.Contains(text, "YAML parse error") || strings.Contains(text, "nil pointer") {
			t.Errorf("%s: %.300s", short(values), text)
		}
		// Values that a template refuses hide the others.
		if first, second := halves(values); len(second) > 0 {
			try(first)
			try(second)
		}
	}
	for _, values := range slices.Concat(rounds, switches, []map[string]any{{}}) {
		group.Go(func() error {
			try(values)
			return nil
		})
	}
	must(t, group.Wait())
	t.Logf("the schema refused %d values and let %d through; Helm rendered %d sets of them, and the API server saw %d objects", refused, fit, s.rendered, len(s.accepted))
	if fit < 300 || refused < 300 || len(s.accepted) < 300 {
		t.Errorf("the schema refused %d values and let %d through; the API server saw %d objects", refused, fit, len(s.accepted))
	}
}

func short(values map[string]any) string { return fmt.Sprintf("%.2000s", fmt.Sprint(values)) }

// nested returns values with one field.
func nested(at []string, value any) map[string]any {
	for _, name := range slices.Backward(at) {
		value = map[string]any{name: value}
	}
	return value.(map[string]any)
}

// merged returns the values of both; those of b win.
func merged(a, b map[string]any) map[string]any {
	out := maps.Clone(a)
	for name, value := range b {
		x, isMap := out[name].(map[string]any)
		if y, ok := value.(map[string]any); ok && isMap {
			value = merged(x, y)
		}
		out[name] = value
	}
	return out
}

// conflicts reports whether values have a field already.
func conflicts(values map[string]any, at []string) bool {
	value, ok := values[at[0]]
	if !ok || len(at) == 1 {
		return ok
	}
	inner, ok := value.(map[string]any)
	return !ok || conflicts(inner, at[1:])
}

// halves splits the fields of values. The second half is empty for a single field.
func halves(values map[string]any) (first, second map[string]any) {
	first, second = map[string]any{}, map[string]any{}
	names := slices.Sorted(maps.Keys(values))
	if len(names) == 1 {
		inner, ok := values[names[0]].(map[string]any)
		if !ok || len(inner) == 0 {
			return values, nil
		}
		a, b := halves(inner)
		if first[names[0]] = a; len(b) > 0 {
			second[names[0]] = b
		}
		return first, second
	}
	for i, name := range names {
		if i < len(names)/2 {
			first[name] = values[name]
		} else {
			second[name] = values[name]
		}
	}
	return first, second
}

// plain returns values as a decoder of JSON does.
func plain(t *testing.T, values map[string]any) any {
	t.Helper()
	text, err := json.Marshal(values)
	must(t, err)
	out, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	must(t, err)
	return out
}

// server asks the API server about rendered objects, about each once.
type server struct {
	t       *testing.T
	dynamic dynamic.Interface
	mapper  meta.RESTMapper

	mu       sync.Mutex
	accepted map[string]bool
	rendered int
}

// render renders the chart, with all features on.
func (s *server) render(ctx context.Context, values map[string]any) (string, error) {
	s.mu.Lock()
	s.rendered++
	s.mu.Unlock()
	file, err := os.CreateTemp(s.t.TempDir(), "")
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(values)
	if err != nil {
		return "", err
	}
	if _, err := file.Write(text); err != nil {
		return "", err
	}
	if err := file.Close(); err != nil {
		return "", err
	}
	return cluster.Run(ctx, filepath.Join(cluster.Tree, "hack", "tool.sh"), "helm", "template", "generated", filepath.Join(cluster.Tree, "deployments/helm/gpu-dra-driver"),
		"--namespace", env.Namespace, "--set", "image.registry=registry.example.com,fullnameOverride=generated,driverName=generated.example.com",
		"--set", "policies.requireToleration.enabled=true,policies.requireQueue.enabled=true,policies.maxGPUs=4,networkPolicies.enabled=true,criticalPodsQuota.enabled=true",
		"--values", file.Name())
}

func (s *server) accept(ctx context.Context, name, manifests string) {
	for _, doc := range strings.Split(manifests, "\n---") {
		s.mu.Lock()
		known := s.accepted[doc]
		s.accepted[doc] = true
		s.mu.Unlock()
		if known {
			continue
		}
		var u unstructured.Unstructured
		if err := yaml.Unmarshal(bytes.TrimSpace([]byte(doc)), &u.Object); err != nil {
			s.t.Errorf("%s: %v", name, err)
			continue
		}
		if len(u.Object) == 0 {
			continue
		}
		gvk := u.GroupVersionKind()
		at, err := s.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			continue // Custom resources of Prometheus and cert-manager.
		}
		if err != nil {
			s.t.Errorf("%s: %v", name, err)
			continue
		}
		objects := dynamic.ResourceInterface(s.dynamic.Resource(at.Resource))
		if at.Scope.Name() == meta.RESTScopeNameNamespace {
			objects = s.dynamic.Resource(at.Resource).Namespace(u.GetNamespace())
		}
		_, err = objects.Create(ctx, &u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationIgnore})
		// A value can name another namespace. DeviceClasses have no names of the release. The account of a Pod is not there yet.
		// Helm itself refuses unknown fields, before the installation.
		if err != nil && !strings.Contains(err.Error(), "error looking up service account") && !apierrors.IsAlreadyExists(err) && !(apierrors.IsNotFound(err) && strings.Contains(err.Error(), "namespaces")) {
			s.t.Errorf("%s: %s %s: %v", name, u.GetKind(), u.GetName(), err)
		}
	}
}
