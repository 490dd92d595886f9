// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"context"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const controllerUser = "system:serviceaccount:gpu-dra-driver:gpu-dra-driver-controller"

func loadWebhooks(t *testing.T, args ...string) []admissionv1.ValidatingWebhook {
	t.Helper()
	for doc := range strings.SplitSeq(render(t, chart, append([]string{"--show-only", "templates/webhook.yaml"}, args...)...), "\n---\n") {
		var c admissionv1.ValidatingWebhookConfiguration
		if err := yaml.Unmarshal([]byte(doc), &c); err != nil {
			t.Fatal(err)
		}
		if c.Kind == "ValidatingWebhookConfiguration" {
			return c.Webhooks
		}
	}
	t.Fatal("no webhook was rendered")
	return nil
}

// request is a request to an API server.
type request struct {
	version, kind string
	user          string
	dryRun        bool
	old, object   string
	typed         bool // As a server converts it, unlike the client's text.
	authorizer    authorizer.Authorizer
	// namespace has the labels of the object's namespace.
	namespace map[string]string
}

var resourceOf = map[string]string{
	"ResourceClaim": "resourceclaims", "ResourceClaimTemplate": "resourceclaimtemplates", "DeviceClass": "deviceclasses", "Pod": "pods",
}

func (r request) groupVersionKind() schema.GroupVersionKind {
	if r.kind == "Pod" {
		return schema.GroupVersionKind{Version: r.version, Kind: r.kind}
	}
	return schema.GroupVersionKind{Group: "resource.k8s.io", Version: r.version, Kind: r.kind}
}

func (r request) read(t *testing.T, text string) runtime.Object {
	t.Helper()
	content := object(t, text)
	gvk := r.groupVersionKind()
	if !r.typed {
		u := &unstructured.Unstructured{Object: content}
		u.SetGroupVersionKind(gvk)
		return u
	}
	o, err := scheme.Scheme.New(gvk)
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, o, true); err != nil {
		t.Fatal(err)
	}
	return o
}

// asked lists the webhooks that an API server calls for a request, by the first part of their names.
func (r request) asked(t *testing.T, hooks []admissionv1.ValidatingWebhook) []string {
	t.Helper()
	gvk := r.groupVersionKind()
	operation, versioned := admission.Create, &admission.VersionedAttributes{VersionedKind: gvk}
	o := r.read(t, r.object)
	versioned.VersionedObject = admission.NewLazyObject(o)
	var old runtime.Object
	if r.old != "" {
		operation, old = admission.Update, r.read(t, r.old)
		versioned.VersionedOldObject = admission.NewLazyObject(old)
	}
	versioned.Attributes = admission.NewAttributesRecord(o, old, gvk, "default", "a", gvk.GroupVersion().WithResource(resourceOf[r.kind]),
		"", operation, nil, r.dryRun, &user.DefaultInfo{Name: r.user})
	compiler := plugincel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	var names []string
	for _, h := range hooks {
		ruled := slices.ContainsFunc(h.Rules, func(rule admissionv1.RuleWithOperations) bool {
			return slices.Contains(rule.APIGroups, gvk.Group) && slices.Contains(rule.APIVersions, r.version) &&
				slices.Contains(rule.Resources, resourceOf[r.kind]) && slices.Contains(rule.Operations, admissionv1.OperationType(operation))
		})
		selector, err := metav1.LabelSelectorAsSelector(h.NamespaceSelector)
		if err != nil {
			t.Fatal(err)
		}
		if !ruled || h.NamespaceSelector != nil && !selector.Matches(labels.Set(r.namespace)) {
			continue
		}
		var conditions []plugincel.ExpressionAccessor
		for _, c := range h.MatchConditions {
			conditions = append(conditions, &matchconditions.MatchCondition{Name: c.Name, Expression: c.Expression})
		}
		// Fail regardless of the webhook's policy: an error must not count as "no match".
		fail := admissionv1.Fail
		matcher := matchconditions.NewMatcher(compiler.CompileCondition(conditions, plugincel.OptionalVariableDeclarations{HasAuthorizer: true},
			environment.StoredExpressions), &fail, "webhook", "validating", h.Name)
		result := matcher.Match(t.Context(), versioned, nil, r.authorizer)
		if result.Error != nil {
			t.Errorf("%s: %v", h.Name, result.Error)
		}
		if result.Matches {
			name, _, _ := strings.Cut(h.Name, ".")
			names = append(names, name)
		}
	}
	return names
}

func TestWebhooks_Objects_RightOneIsCalled(t *testing.T) {
	const (
		anna    = "anna"
		ours    = "{opaque: {driver: gpu.nvidia.com, parameters: {kind: GpuConfig}}}"
		others  = "{opaque: {driver: nic.example.com, parameters: {kind: NIC}}}"
		domains = "{opaque: {driver: compute-domain.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomainChannelConfig}}}"
		device  = "{cel: {expression: \"device.driver == 'gpu.nvidia.com'\"}}"
		nic     = "{cel: {expression: \"device.driver == 'nic.example.com'\"}}"

		ofChart = "{name: a, labels: {app.kubernetes.io/managed-by: Helm, app.kubernetes.io/instance: gpu-dra-driver}}"
	)
	class := func(spec string) string { return "{metadata: {name: a}, spec: " + spec + "}" }
	named := func(name, selectors string) string {
		return "{metadata: {name: " + name + "}, spec: {selectors: [" + selectors + "]}}"
	}
	charts := func(kind string) string {
		return `{cel: {expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '` + kind + `'"}}`
	}
	hooks, there := loadWebhooks(t), installed(t)
	for name, c := range map[string]struct {
		kind, user  string
		dryRun      bool
		old, object string
		want        string
	}{
		"a claim with our config":                           {"ResourceClaim", anna, false, "", "{spec: {devices: {config: [" + others + ", " + ours + "]}}}", "parameters"},
		"a claim of another driver's config":                {"ResourceClaim", anna, false, "", "{spec: {devices: {config: [" + others + "]}}}", "advice"},
		"a template of a compute domain":                    {"ResourceClaimTemplate", anna, false, "", "{spec: {spec: {devices: {requests: [{name: channel, exactly: {deviceClassName: compute-domain-default-channel.nvidia.com}}], config: [" + domains + "]}}}}", "advice"},
		"a class of compute domains":                        {"DeviceClass", anna, false, "", class(`{selectors: [{cel: {expression: "device.driver == 'compute-domain.nvidia.com' && device.attributes['compute-domain.nvidia.com'].type == 'channel'"}}]}`), "advice"},
		"a claim without config":                            {"ResourceClaim", anna, false, "", "{spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com}}]}}}", "advice"},
		"a claim without devices":                           {"ResourceClaim", anna, false, "", "{spec: {}}", "advice"},
		"a config without driver":                           {"ResourceClaim", anna, false, "", "{spec: {devices: {config: [{}, {opaque: {}}]}}}", "advice"},
		"a template with our config":                        {"ResourceClaimTemplate", anna, false, "", "{spec: {spec: {devices: {config: [" + ours + "]}}}}", "parameters"},
		"a template of another driver's":                    {"ResourceClaimTemplate", anna, false, "", "{spec: {metadata: {labels: {a: b}}, spec: {devices: {config: [" + others + "]}}}}", "advice"},
		"an empty template":                                 {"ResourceClaimTemplate", anna, false, "", "{spec: {spec: {}}}", "advice"},
		"a class with our selector":                         {"DeviceClass", anna, false, "", class("{selectors: [" + nic + ", " + device + "]}"), "parameters"},
		"a class with our config":                           {"DeviceClass", anna, false, "", class("{config: [" + ours + "]}"), "parameters"},
		"a class of another driver":                         {"DeviceClass", anna, false, "", class("{selectors: [" + nic + "], config: [" + others + "]}"), "advice"},
		"a class of nothing":                                {"DeviceClass", anna, false, "", class("{}"), "advice"},
		"a class of a driver with a like name":              {"DeviceClass", anna, false, "", class(`{selectors: [{cel: {expression: "device.driver == 'vgpu.nvidia.com'"}}]}`), "advice"},
		"a class with our selector, quoted as in a program": {"DeviceClass", anna, false, "", class(`{selectors: [{cel: {expression: 'device.driver == "gpu.nvidia.com"'}}]}`), "parameters"},
		"a class with an empty selector":                    {"DeviceClass", anna, false, "", class("{selectors: [{}]}"), "advice"},
		"a class that becomes ours":                         {"DeviceClass", anna, false, class("{selectors: [" + nic + "]}"), class("{selectors: [" + device + "]}"), "parameters"},
		"a class that is ours no longer":                    {"DeviceClass", anna, false, class("{selectors: [" + device + "]}"), class("{selectors: [" + nic + "]}"), "advice"},
		"a class that gets a label":                         {"DeviceClass", anna, false, class("{selectors: [" + device + "]}"), "{metadata: {name: a, labels: {a: b}}, spec: {selectors: [" + device + "]}}", ""},
		"another's class that gets a label":                 {"DeviceClass", anna, false, class("{selectors: [" + nic + "]}"), "{metadata: {name: a, labels: {a: b}}, spec: {selectors: [" + nic + "]}}", ""},

		"the controller's class":             {"DeviceClass", controllerUser, false, "", class("{selectors: [" + device + "]}"), ""},
		"the controller's change of a class": {"DeviceClass", controllerUser, false, class("{selectors: [" + nic + "]}"), class("{selectors: [" + device + "]}"), ""},
		"the controller's claim":             {"ResourceClaim", controllerUser, false, "", "{spec: {devices: {config: [" + ours + "]}}}", ""},
		"the controller's other claim":       {"ResourceClaim", controllerUser, false, "", "{spec: {}}", ""},
		"what the controller only tries out": {"ResourceClaim", controllerUser, true, "", "{spec: {devices: {config: [" + ours + "]}}}", "parameters"},
		"a namesake of the controller":       {"DeviceClass", "system:serviceaccount:other:gpu-dra-driver-controller", false, "", class("{selectors: [" + device + "]}"), "parameters"},

		"a class with the chart's labels":         {"DeviceClass", anna, false, "", "{metadata: " + ofChart + ", spec: {selectors: [" + device + "]}}", "parameters"},
		"a class with the chart's name":           {"DeviceClass", anna, false, "", named("gpu.nvidia.com", device), "parameters"},
		"a class with the chart's selector":       {"DeviceClass", anna, false, "", named("a", charts("gpu")), "parameters"},
		"the selector of another chart class":     {"DeviceClass", anna, false, "", named("gpu.nvidia.com", charts("mig")), "parameters"},
		"the chart's selector and another":        {"DeviceClass", anna, false, "", named("gpu.nvidia.com", charts("gpu")+", "+device), "parameters"},
		"the chart's class with parameters":       {"DeviceClass", anna, false, "", strings.Replace(named("gpu.nvidia.com", charts("gpu")), "spec: {", "spec: {config: ["+ours+"], ", 1), "parameters"},
		"the chart's class, changed":              {"DeviceClass", anna, false, named("gpu.nvidia.com", charts("gpu")), named("gpu.nvidia.com", device), "parameters"},
		"the chart's class, repaired":             {"DeviceClass", anna, false, named("gpu.nvidia.com", device), named("gpu.nvidia.com", charts("gpu")), ""},
		"the chart's class with another resource": {"DeviceClass", anna, false, "", strings.Replace(named("mig.nvidia.com", charts("mig")), "spec: {", "spec: {extendedResourceName: nvidia.com/gpu, ", 1), "parameters"},
		"the chart's class with its resource":     {"DeviceClass", anna, false, "", strings.Replace(named("gpu.nvidia.com", charts("gpu")), "spec: {", "spec: {extendedResourceName: nvidia.com/gpu, ", 1), ""},
		"a class without name and selector":       {"DeviceClass", anna, false, "", "{metadata: {}, spec: {config: [" + ours + "]}}", "parameters"},
		"a claim that looks like the chart's":     {"ResourceClaim", anna, false, "", "{metadata: " + ofChart + ", spec: {devices: {config: [" + ours + "]}}}", "parameters"},
		"a claim with our config, for a pod":      {"ResourceClaim", "system:serviceaccount:kube-system:resource-claim-controller", false, "", "{spec: {devices: {config: [" + ours + "]}}}", "parameters"},
		"a claim without config, for a pod":       {"ResourceClaim", "system:serviceaccount:kube-system:resource-claim-controller", false, "", "{spec: {}}", ""},
		"a claim for a pod's extended resources":  {"ResourceClaim", "system:kube-scheduler", false, "", "{spec: {devices: {requests: [{name: a}]}}}", ""},
	} {
		for _, version := range []string{"v1", "v1beta1", "v1beta2"} {
			for _, typed := range []bool{true, false} {
				if typed && version == "v1beta1" && strings.Contains(c.object, "exactly") {
					continue // Requests of that version are flat; no condition uses them.
				}
				r := request{version, c.kind, c.user, c.dryRun, c.old, c.object, typed, authorizer.AuthorizerFunc(there.Authorize), nil}
				if got := strings.Join(r.asked(t, hooks), " "); got != c.want {
					t.Errorf("%s (%s, typed %v): %q is asked, want %q", name, version, typed, got, c.want)
				}
			}
		}
	}
}

// TestWebhooks_ClassesOfTheChart_NotCalled reads the classes that the chart writes, of any name of the driver.
func TestWebhooks_ClassesOfTheChart_NotCalled(t *testing.T) {
	for _, args := range [][]string{nil, {"--values", "testdata/values/renamed.yaml"}} {
		hooks := loadWebhooks(t, args...)
		classes := 0
		for doc := range strings.SplitSeq(render(t, chart, append([]string{"--show-only", "templates/deviceclasses.yaml"}, args...)...), "\n---\n") {
			if !strings.Contains(doc, "kind: DeviceClass") {
				continue
			}
			classes++
			for _, version := range []string{"v1", "v1beta1", "v1beta2"} {
				r := request{version: version, kind: "DeviceClass", user: "helm", object: doc}
				if got := r.asked(t, hooks); len(got) > 0 {
					t.Errorf("%v, %s: %q is asked about\n%s", args, version, got, doc)
				}
			}
		}
		if classes != 4 {
			t.Errorf("%v: %d classes", args, classes)
		}
	}
}

// roles is an `authorizer` with the rights of a Role, or without: its namespace is deleted.
type roles struct {
	user, namespace, resource, name string
	deleted                         bool
}

func (r roles) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if !r.deleted && a.GetUser().GetName() == r.user && a.GetVerb() == "get" && a.GetNamespace() == r.namespace &&
		a.GetResource() == r.resource && a.GetName() == r.name {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// installed has the rights of the Role that a chart's values make in its namespace.
func installed(t *testing.T, args ...string) roles {
	t.Helper()
	for doc := range strings.SplitSeq(render(t, chart, append([]string{"--show-only", "templates/rbac.yaml"}, args...)...), "\n---\n") {
		var role rbacv1.Role
		if err := yaml.Unmarshal([]byte(doc), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind != "Role" {
			continue
		}
		for _, rule := range role.Rules {
			if slices.Contains(rule.Resources, "serviceaccounts") {
				name := rule.ResourceNames[0]
				return roles{user: "system:serviceaccount:" + role.Namespace + ":" + name, namespace: role.Namespace, resource: "serviceaccounts", name: name}
			}
		}
	}
	t.Fatal("the chart has no Role for its ServiceAccount")
	return roles{}
}

// TestWebhooks_NamespaceDeleted_DenyNothing also has the policies of tenants.
func TestWebhooks_NamespaceDeleted_DenyNothing(t *testing.T) {
	for name, args := range map[string][]string{
		"default": nil, "renamed": {"--values", "testdata/values/renamed.yaml"}, "without a controller's ConfigMap": {"--set", "publish=null"},
		"cert-manager": {"--values", "testdata/values/cert-manager.yaml"}, "own account": {"--set", "serviceAccount.create=false", "--set", "serviceAccount.name=mine"},
	} {
		hooks := loadWebhooks(t, args...)
		there := installed(t, args...)
		gone := there
		gone.deleted = true
		driver := strings.TrimPrefix(hooks[0].Name, "parameters.")
		r := request{version: "v1", kind: "ResourceClaim", user: "anna", object: "{spec: {devices: {config: [{opaque: {driver: " + driver + "}}]}}}", authorizer: authorizer.AuthorizerFunc(there.Authorize)}
		if got := strings.Join(r.asked(t, hooks), " "); got != "parameters" {
			t.Errorf("%s: %q is asked", name, got)
		}
		r.authorizer = authorizer.AuthorizerFunc(gone.Authorize)
		if got := r.asked(t, hooks); len(got) > 0 {
			t.Errorf("%s: %q is asked without the namespace", name, got)
		}
	}
	for name, p := range loadPolicies(t, "policies.yaml", "--values", "testdata/values/policies.yaml") {
		if !slices.ContainsFunc(p.spec.MatchConditions, isInstalled) {
			t.Errorf("policy %s denies without the namespace", name)
		}
	}
}

func isInstalled(c admissionv1.MatchCondition) bool { return c.Name == "the-driver-is-installed" }

// TestWebhooks_DriverRenamed_MatchItsName renders a release with other names of driver and controller.
func TestWebhooks_DriverRenamed_MatchItsName(t *testing.T) {
	hooks := loadWebhooks(t, "--values", "testdata/values/renamed.yaml")
	for config, want := range map[string]string{"gpu.example.com": "parameters", "gpu.nvidia.com": "advice"} {
		r := request{version: "v1", kind: "ResourceClaim", user: "anna", object: "{spec: {devices: {config: [{opaque: {driver: " + config + "}}]}}}"}
		r.authorizer = authorizer.AuthorizerFunc(installed(t, "--values", "testdata/values/renamed.yaml").Authorize)
		if got := strings.Join(r.asked(t, hooks), " "); got != want {
			t.Errorf("%s: %q is asked, want %q", config, got, want)
		}
		r.user = "system:serviceaccount:gpu-dra-driver:second-controller"
		if got := r.asked(t, hooks); len(got) > 0 {
			t.Errorf("%s: the controller asks itself, %q", config, got)
		}
	}
}

// TestWebhooks_Conditions_TypeCheck guards against configurations that an API server rejects.
func TestWebhooks_Conditions_TypeCheck(t *testing.T) {
	for _, h := range loadWebhooks(t) {
		policy{spec: admissionv1.ValidatingAdmissionPolicySpec{MatchConditions: h.MatchConditions}}.typeChecks(t)
		if strings.HasPrefix(h.Name, "budget") {
			continue // TestWebhooks_Budgets_… has these.
		}
		if len(h.MatchConditions) < 4 || *h.SideEffects != admissionv1.SideEffectClassNone || *h.MatchPolicy != admissionv1.Exact {
			t.Errorf("%s: %+v", h.Name, h)
		}
	}
}

// TestWebhooks_NoAnswer_FailurePolicyPerHook checks the policies without a running controller: invalid parameters are
// denied, and the warning webhook blocks no request.
func TestWebhooks_NoAnswer_FailurePolicyPerHook(t *testing.T) {
	for set, want := range map[string]admissionv1.FailurePolicyType{"webhook.failurePolicy=Fail": admissionv1.Fail, "webhook.failurePolicy=Ignore": admissionv1.Ignore} {
		hooks := loadWebhooks(t, "--set", set)
		if len(hooks) != 4 || *hooks[0].FailurePolicy != want || *hooks[1].FailurePolicy != admissionv1.Ignore || *hooks[1].TimeoutSeconds > 2 {
			t.Errorf("%s: %+v", set, hooks)
		}
	}
}

// TestWebhooks_Budgets_AskedInLabelledNamespacesOnly also renders the other name of a driver.
func TestWebhooks_Budgets_AskedInLabelledNamespacesOnly(t *testing.T) {
	const (
		claim    = "{metadata: {name: a}, spec: {devices: {requests: [{name: a}]}}}"
		template = "{spec: {containers: [{name: c}], resourceClaims: [{name: a, resourceClaimTemplateName: t}]}}"
		named    = "{spec: {containers: [{name: c}], resourceClaims: [{name: a, resourceClaimName: t}]}}"
		resource = "{spec: {containers: [{name: c}], initContainers: [{name: i, resources: {limits: {nvidia.com/gpu: '1'}}}]}}"
		cpu      = "{spec: {containers: [{name: c, resources: {limits: {cpu: '1', memory: 1Gi, hugepages-2Mi: 2Mi}}}]}}"
	)
	for driver, args := range map[string][]string{"gpu.nvidia.com": nil, "gpu.example.com": {"--values", "testdata/values/renamed.yaml"}} {
		hooks, there := loadWebhooks(t, args...), installed(t, args...)
		for name, c := range map[string]struct{ kind, object, want string }{
			"a claim":                   {"ResourceClaim", claim, "advice budget"},
			"a template":                {"ResourceClaimTemplate", claim, "advice budget"},
			"a class":                   {"DeviceClass", "{metadata: {name: a}, spec: {}}", "advice"},
			"a pod with a template":     {"Pod", template, "budget-pods"},
			"a pod with a claim":        {"Pod", named, ""},
			"a pod with a resource":     {"Pod", resource, "budget-pods"},
			"a pod with CPU and memory": {"Pod", cpu, ""},
		} {
			for _, label := range []string{"true", "false", ""} {
				r := request{version: "v1", kind: c.kind, user: "anna", object: c.object, authorizer: authorizer.AuthorizerFunc(there.Authorize)}
				want := c.want
				if r.namespace = map[string]string{driver + "/budget": label}; label != "true" {
					want = strings.TrimSpace(strings.TrimSuffix(strings.TrimSuffix(want, "budget"), "budget-pods"))
				}
				if got := strings.Join(r.asked(t, hooks), " "); got != want {
					t.Errorf("%s, %s, label %q: %q is asked, want %q", driver, name, label, got, want)
				}
			}
		}
		for _, h := range hooks[2:] {
			policy{spec: admissionv1.ValidatingAdmissionPolicySpec{MatchConditions: h.MatchConditions}}.typeChecks(t)
		}
		if b := hooks[2]; *b.FailurePolicy != admissionv1.Fail || *b.SideEffects != admissionv1.SideEffectClassNoneOnDryRun || *b.MatchPolicy != admissionv1.Exact {
			t.Errorf("%+v", b)
		}
		if p := hooks[3]; *p.FailurePolicy != admissionv1.Ignore || *p.SideEffects != admissionv1.SideEffectClassNone {
			t.Errorf("%+v", p)
		}
	}
}
