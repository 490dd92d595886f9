// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	"sigs.k8s.io/yaml"
)

// policy is the rendered ValidatingAdmissionPolicy, compiled with the CEL library and extensions of an API server.
// The end-to-end tests use a real server; this covers every branch.
type policy struct {
	spec     admissionv1.ValidatingAdmissionPolicySpec
	env      *cel.Env
	programs map[string]cel.Program // by expression
}

func loadPolicy(t *testing.T) policy { return loadPolicies(t, "admissionpolicy.yaml")["own-slices"] }

// policyEnv has the CEL library and extensions of an API server.
func policyEnv(t *testing.T) *cel.Env {
	t.Helper()
	base, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Env(environment.NewExpressions)
	if err != nil {
		t.Fatal(err)
	}
	env, err := base.Extend(
		cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("namespaceObject", cel.DynType),
		cel.Variable("request", cel.DynType), cel.Variable("variables", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// loadPolicies returns the policies of a template, by their name suffixes.
func loadPolicies(t *testing.T, template string, args ...string) map[string]policy {
	t.Helper()
	return policiesIn(t, policyEnv(t), render(t, chart, append([]string{"--show-only", "templates/" + template}, args...)...), "gpu-dra-driver-")
}

// policiesIn returns the policies of a manifest, by their names without the prefix.
func policiesIn(t *testing.T, env *cel.Env, manifest, prefix string) map[string]policy {
	t.Helper()
	out := map[string]policy{}
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		var vap admissionv1.ValidatingAdmissionPolicy
		if err := yaml.Unmarshal([]byte(doc), &vap); err != nil {
			t.Fatal(err)
		}
		if vap.Kind == "ValidatingAdmissionPolicy" {
			out[strings.TrimPrefix(vap.Name, prefix)] = policy{spec: vap.Spec, env: env, programs: map[string]cel.Program{}}
		}
	}
	if len(out) == 0 {
		t.Fatal("no policy was rendered")
	}
	return out
}

func (p policy) eval(t *testing.T, expression string, in map[string]any) any {
	t.Helper()
	program := p.programs[expression]
	if program == nil {
		ast, issues := p.env.Compile(expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", expression, issues.Err())
		}
		var err error
		if program, err = p.env.Program(ast, cel.CostLimit(celconfig.PerCallLimit), cel.CostTracking(&library.CostEstimator{})); err != nil {
			t.Fatal(err)
		}
		p.programs[expression] = program
	}
	out, _, err := program.Eval(in)
	if err != nil {
		t.Fatalf("%s: %v", expression, err) // on a server, an error denies
	}
	return out.Value()
}

// decide returns whether the policy matches the request, and the message of the first failing validation.
func (p policy) decide(t *testing.T, in map[string]any) (matched bool, denied string) {
	t.Helper()
	for _, c := range p.spec.MatchConditions {
		if !isInstalled(c) && p.eval(t, c.Expression, in) != true { // TestWebhooks_NamespaceDeleted_DenyNothing evaluates it.
			return false, ""
		}
	}
	variables := map[string]any{}
	in["variables"] = variables
	for _, v := range p.spec.Variables {
		variables[v.Name] = p.eval(t, v.Expression, in)
	}
	for _, v := range p.spec.Validations {
		if p.eval(t, v.Expression, in) == true {
			continue
		}
		if v.MessageExpression != "" {
			return true, p.eval(t, v.MessageExpression, in).(string)
		}
		return true, v.Message
	}
	return true, ""
}

func slice(node, driver, pool string) map[string]any {
	spec := map[string]any{"driver": driver, "pool": map[string]any{"name": pool}}
	if node != "" {
		spec["nodeName"] = node
	} else {
		spec["allNodes"] = true
	}
	return map[string]any{"spec": spec}
}

func TestSlicesPolicy_OtherNodesSlices_Denied(t *testing.T) {
	const plugin = "system:serviceaccount:gpu-dra-driver:gpu-dra-driver-kubelet-plugin"
	const driver = "gpu.nvidia.com"
	own := slice("node-a", driver, "node-a/gpu")
	other := slice("node-b", driver, "node-b/gpu")
	onA := map[string]any{"authentication.kubernetes.io/node-name": []any{"node-a"}}

	// with has two devices, the second without an attribute.
	with := func(version, without string) map[string]any {
		all := nodeOf(t, "hgx-h100", 2)
		s := all[0].DeepCopy()
		delete(s.Spec.Devices[1].Attributes, resourceapi.QualifiedName(without))
		s.Spec.NodeName, s.Spec.Pool.Name = new("node-a"), "node-a/gpu"
		return asObject(t, s, version)
	}

	p := loadPolicy(t)
	for _, c := range []struct {
		name        string
		user        string
		extra       map[string]any
		old, object any
		matched     bool
		denied      string
	}{
		{"its own slice may be created", plugin, onA, nil, own, true, ""},
		{"its own slice may be updated", plugin, onA, own, own, true, ""},
		{"its own slice may be deleted", plugin, onA, own, nil, true, ""},
		{"another node's may not be created", plugin, onA, nil, other, true, "its own node, which is node-a"},
		{"another node's may not be updated", plugin, onA, other, other, true, "its own node"},
		{"another node's may not be deleted", plugin, onA, other, nil, true, "its own node"},
		{"another node's may not be taken over", plugin, onA, other, own, true, "its own node"},
		{"a slice for all nodes may not be created", plugin, onA, nil, slice("", driver, "node-a/gpu"), true, "its own node"},
		{"another driver's may not be created", plugin, onA, nil, slice("node-a", "dra.example.com", "node-a/gpu"), true, "driver gpu.nvidia.com"},
		{"another driver's may not be deleted", plugin, onA, slice("node-a", "dra.example.com", "node-a/gpu"), nil, true, "driver gpu.nvidia.com"},
		{"another node's pool may not be joined", plugin, onA, nil, slice("node-a", driver, "node-b/gpu"), true, "begin with node-a/"},
		{"a node whose name it begins with is another", plugin, onA, nil, slice("node-a", driver, "node-ab/gpu"), true, "begin with node-a/"},
		{"a device without its type may not be created", plugin, onA, nil, with("v1", "type"), true, "no type of this driver"},
		{"nor in v1beta1", plugin, onA, own, with("v1beta1", "type"), true, "no type of this driver"},
		{"devices with their types may be created", plugin, onA, nil, with("v1", "brand"), true, ""},
		{"devices may be created in v1beta1", plugin, onA, nil, with("v1beta1", "brand"), true, ""},
		{"a token of no node is refused", plugin, map[string]any{}, nil, own, true, "names no node"},
		{"a user without extra fields is refused", plugin, nil, nil, own, true, "names no node"},
		{"an empty node name is none", plugin, map[string]any{"authentication.kubernetes.io/node-name": []any{}}, nil, own, true, "names no node"},
		{"other users are none of its business", "system:serviceaccount:kube-system:other", onA, nil, other, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			user := map[string]any{"username": c.user}
			if c.extra != nil {
				user["extra"] = c.extra
			}
			matched, denied := p.decide(t, map[string]any{
				"request": map[string]any{"userInfo": user}, "object": c.object, "oldObject": c.old,
			})
			if matched != c.matched || (denied == "") != (c.denied == "") || !strings.Contains(denied, c.denied) {
				t.Errorf("matched %v, denied %q; want %v, %q", matched, denied, c.matched, c.denied)
			}
		})
	}
}

// TestWritesPolicies_ObjectsOfOthers_Denied covers what plugin and controller may write beside slices.
func TestWritesPolicies_ObjectsOfOthers_Denied(t *testing.T) {
	all := loadPolicies(t, "admissionpolicy.yaml")
	const account = "system:serviceaccount:gpu-dra-driver:gpu-dra-driver-"
	claim := func(pools, status string) map[string]any {
		return object(t, `{status: {reservedFor: [{name: p}], allocation: {devices: {results: [`+pools+`]}}, devices: [`+status+`]}}`)
	}
	const here, there = `{driver: gpu.nvidia.com, pool: node-a/gpu, device: d}`, `{driver: gpu.nvidia.com, pool: node-b/gpu, device: d}`
	const card = `{driver: nic.example.com, pool: node-a, device: d}`
	class := func(label, expression string) map[string]any {
		return object(t, `{metadata: {labels: {gpu-dra-driver/managed-by: `+label+`}}, spec: {selectors: [{cel: {expression: `+expression+`}}]}}`)
	}
	plain := object(t, `{metadata: {name: mine}, spec: {config: []}}`)
	node := func(labels, spec string) map[string]any {
		return object(t, `{metadata: {labels: {`+labels+`}, annotations: {a: b}}, spec: {`+spec+`}}`)
	}
	for _, c := range []struct {
		name, policy, user, operation string
		old, object                   any
		denied                        string
	}{
		{"its devices are reported", "own-claims", "kubelet-plugin", "UPDATE", claim(here, card), claim(here, here+", "+card), ""},
		{"its devices are withdrawn", "own-claims", "kubelet-plugin", "UPDATE", claim(here, here), claim(here, ""), ""},
		{"another node's claim", "own-claims", "kubelet-plugin", "UPDATE", claim(there, ""), claim(there, here), "own node, which is node-a"},
		{"a claim without an allocation", "own-claims", "kubelet-plugin", "UPDATE", object(t, "{metadata: {}}"), claim(here, here), "own node"},
		{"another driver's entry", "own-claims", "kubelet-plugin", "UPDATE", claim(here, card), claim(here, ""), "only its own devices"},
		{"another node's entry", "own-claims", "kubelet-plugin", "UPDATE", claim(here, ""), claim(here, there), "only its own devices"},
		{"an allocation", "own-claims", "kubelet-plugin", "UPDATE", claim(here, ""), claim(here+", "+there, ""), "only its own devices"},
		{"a class that it makes", "own-classes", "controller", "CREATE", nil, class("gpu.nvidia.com", "a"), ""},
		{"a class that it changes", "own-classes", "controller", "UPDATE", class("gpu.nvidia.com", "a"), class("gpu.nvidia.com", "b"), ""},
		{"a class that it removes", "own-classes", "controller", "DELETE", class("gpu.nvidia.com", "a"), nil, ""},
		{"another's class, written again", "own-classes", "controller", "UPDATE", plain, plain, ""},
		{"another's class, changed", "own-classes", "controller", "UPDATE", plain, class("gpu.nvidia.com", "a"), "managed-by"},
		{"another's class, made its own", "own-classes", "controller", "UPDATE", class("other", "a"), class("gpu.nvidia.com", "a"), "managed-by"},
		{"another's class, left to the garbage collector", "own-classes", "controller", "UPDATE", plain, object(t, `{metadata: {name: mine, ownerReferences: [{uid: gone}]}, spec: {config: []}}`), "managed-by"},
		{"another's class, removed", "own-classes", "controller", "DELETE", plain, nil, "managed-by"},
		{"another driver's class", "own-classes", "controller", "DELETE", class("other.example.com", "a"), nil, "managed-by"},
		{"labels of NVIDIA", "own-labels", "controller", "UPDATE", node("nvidia.com/gpu.count: '8', zone: z", ""), node("gpu.nvidia.com/nvlink: a, zone: z", ""), ""},
		{"another's label, changed", "own-labels", "controller", "UPDATE", node("zone: z", ""), node("zone: y", ""), "only the nodes' labels"},
		{"another's label, removed", "own-labels", "controller", "UPDATE", node("zone: z", ""), node("", ""), "only the nodes' labels"},
		{"a node's taints", "own-labels", "controller", "UPDATE", node("", "taints: [{key: a}]"), node("", ""), "only the nodes' labels"},
		{"a node, left to the garbage collector", "own-labels", "controller", "UPDATE", object(t, "{metadata: {name: n}, spec: {}}"), object(t, "{metadata: {name: n, ownerReferences: [{uid: gone}]}, spec: {}}"), "only the nodes' labels"},
		{"a node that stays for ever", "own-labels", "controller", "UPDATE", object(t, "{metadata: {name: n}, spec: {}}"), object(t, "{metadata: {name: n, finalizers: [a/b]}, spec: {}}"), "only the nodes' labels"},
	} {
		t.Run(c.name, func(t *testing.T) {
			request := func(user string) map[string]any {
				extra := map[string]any{"authentication.kubernetes.io/node-name": []any{"node-a"}}
				return map[string]any{
					"request": map[string]any{"userInfo": map[string]any{"username": user, "extra": extra}, "operation": c.operation},
					"object":  c.object, "oldObject": c.old,
				}
			}
			matched, denied := all[c.policy].decide(t, request(account+c.user))
			if !matched || (denied == "") != (c.denied == "") || !strings.Contains(denied, c.denied) {
				t.Errorf("matched %v, denied %q; want %q", matched, denied, c.denied)
			}
			if matched, _ := all[c.policy].decide(t, request("admin")); matched {
				t.Error("other users are matched")
			}
		})
	}
}

// TestWritesPolicies_Preemption_ControllerReservesGPUsOnly has a controller that may patch nodes for labels, reservations or both.
func TestWritesPolicies_Preemption_ControllerReservesGPUsOnly(t *testing.T) {
	node := func(labels, annotations string) map[string]any {
		return object(t, `{metadata: {labels: {`+labels+`}, annotations: {`+annotations+`}}, spec: {}}`)
	}
	changes := map[string]map[string]any{
		"label": node("nvidia.com/gpu.count: '8'", ""), "reservation": node("", "reserve.gpu.nvidia.com/gpu-0000-1b-00-0: now"),
		"cordon": node("", "cordon.gpu.nvidia.com/gpu-0000-1b-00-0: NoSchedule"), "another driver's": node("", "reserve.example.com/gpu-0000-1b-00-0: now"),
	}
	for _, c := range []struct {
		labels, preemption string
		allowed            []string
	}{{"true", "false", []string{"label"}}, {"true", "true", []string{"label", "reservation"}}, {"false", "true", []string{"reservation"}}} {
		all := loadPolicies(t, "admissionpolicy.yaml", "--set", "nodeLabels.enabled="+c.labels+",preemption.enabled="+c.preemption)
		all["own-labels"].typeChecks(t)
		for name, to := range changes {
			for _, pair := range [][2]any{{node("", ""), to}, {to, node("", "")}} {
				_, denied := all["own-labels"].decide(t, map[string]any{
					"request": map[string]any{"userInfo": map[string]any{"username": controllers}, "operation": "UPDATE"},
					"object":  pair[1], "oldObject": pair[0],
				})
				if (denied == "") != slices.Contains(c.allowed, name) {
					t.Errorf("labels %s, preemption %s, %s: denied %q", c.labels, c.preemption, name, denied)
				}
			}
		}
	}
}

// controllers is the account of the controller.
const controllers = "system:serviceaccount:gpu-dra-driver:gpu-dra-driver-controller"

// TestWritesPolicies_Evictions_OutsideExemptNamespacesOnly has each way in which the controller may end a pod.
func TestWritesPolicies_Evictions_OutsideExemptNamespacesOnly(t *testing.T) {
	pod := func(spec string) map[string]any { return object(t, "{metadata: {name: p}, spec: {"+spec+"}}") }
	for _, c := range []struct {
		name, exempt, namespace string
		deleted                 map[string]any // nil for an eviction
		denied                  string
	}{
		{"an eviction", "", "team-a", nil, ""},
		{"of the cluster's own", "", "kube-system", nil, "exemptNamespaces"},
		{"of the driver's own", "", "gpu-dra-driver", nil, "its own namespace"},
		{"of an exempt namespace", `["team-a"]`, "team-a", nil, "exemptNamespaces"},
		{"where no namespace is exempt", "[]", "kube-system", nil, ""},
		{"of the driver's own, where none is exempt", "[]", "gpu-dra-driver", nil, "its own namespace"},
		{"a deletion", "", "team-a", pod("priority: 1000000000"), ""},
		{"a deletion of a pod without priority", "", "team-a", pod(""), ""},
		{"a deletion of a critical pod", "", "team-a", pod("priority: 2000000000"), "critical"},
		{"a deletion of the cluster's own", "", "kube-system", pod("priority: 1"), "exemptNamespaces"},
	} {
		args := []string{"--set", "preemption.enabled=true"}
		if c.exempt != "" {
			args = append(args, "--set-json", "preemption.exemptNamespaces="+c.exempt)
		}
		p := loadPolicies(t, "admissionpolicy.yaml", args...)["own-evictions"]
		p.typeChecks(t)
		in := func(user string) map[string]any {
			request := map[string]any{"userInfo": map[string]any{"username": user}, "namespace": c.namespace, "operation": "CREATE"}
			if c.deleted == nil {
				return map[string]any{"request": request, "object": object(t, "{metadata: {name: p}}"), "oldObject": nil}
			}
			request["operation"] = "DELETE"
			return map[string]any{"request": request, "object": nil, "oldObject": c.deleted}
		}
		if matched, denied := p.decide(t, in(controllers)); !matched || (denied == "") != (c.denied == "") || !strings.Contains(denied, c.denied) {
			t.Errorf("%s: matched %v, denied %q; want %q", c.name, matched, denied, c.denied)
		}
		if matched, _ := p.decide(t, in("admin")); matched {
			t.Errorf("%s: other users are matched", c.name)
		}
	}
}

// TestWritesPolicies_PodStatus_OnlyItsNomination sets, changes and removes each field that the status of a pod has.
func TestWritesPolicies_PodStatus_OnlyItsNomination(t *testing.T) {
	p := loadPolicies(t, "admissionpolicy.yaml", "--set", "preemption.enabled=true")["own-nominations"]
	p.typeChecks(t)
	pod := func(part, field string, value any) map[string]any {
		out := object(t, "{metadata: {name: p, labels: {a: b}}, spec: {nodeName: n}, status: {phase: Pending, nominatedNodeName: other}}")
		if field != "" {
			out[part].(map[string]any)[field] = value
		}
		return out
	}
	fields := map[string][]string{"metadata": {"labels", "annotations", "finalizers", "ownerReferences"}}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[corev1.PodStatus]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields["status"] = append(fields["status"], name)
	}
	if len(fields["status"]) < 15 {
		t.Fatalf("the status of a pod has only the fields %v", fields["status"])
	}
	for part, names := range fields {
		for _, name := range names {
			for _, pair := range [][2]map[string]any{
				{pod(part, "", nil), pod(part, name, "x")}, {pod(part, name, "x"), pod(part, name, "y")}, {pod(part, name, "x"), pod(part, "", nil)},
			} {
				_, denied := p.decide(t, map[string]any{
					"request": map[string]any{"userInfo": map[string]any{"username": controllers}, "operation": "UPDATE"}, "oldObject": pair[0], "object": pair[1],
				})
				if (denied == "") != (name == "nominatedNodeName") {
					t.Errorf("%s.%s: denied %q", part, name, denied)
				}
			}
		}
	}
	first := map[string]any{
		"request":   map[string]any{"userInfo": map[string]any{"username": controllers}, "operation": "UPDATE"},
		"oldObject": object(t, "{metadata: {name: p}, spec: {}}"), "object": object(t, "{metadata: {name: p}, spec: {}, status: {nominatedNodeName: n}}"),
	}
	if _, denied := p.decide(t, first); denied != "" {
		t.Errorf("the first status of a pod: denied %q", denied)
	}
}

// TestSimulatorPolicy_NodesOfOthers_OnlyTwoLabelsOfItsOwn has each part of a node that a simulator could write.
func TestSimulatorPolicy_NodesOfOthers_OnlyTwoLabelsOfItsOwn(t *testing.T) {
	p := policiesIn(t, policyEnv(t), renderSimulator(t), "gpu-simulator-")["own-node"]
	p.typeChecks(t)
	node := func(name, metadata, spec string) map[string]any {
		return object(t, "{metadata: {name: "+name+", "+metadata+"}, spec: {"+spec+"}}")
	}
	const own = "labels: {zone: z, gpu-simulator/present: 'true', feature.node.kubernetes.io/pci-10de.present: 'true'}"
	for name, c := range map[string]struct {
		from, to map[string]any
		denied   string
	}{
		"its labels":       {node("node-a", "labels: {zone: z}", ""), node("node-a", own, ""), ""},
		"another's labels": {node("node-a", "labels: {zone: z}", ""), node("node-a", "labels: {zone: y}", ""), "two labels"},
		"another's node":   {node("node-b", "labels: {zone: z}", ""), node("node-b", own, ""), "own node"},
		"an annotation":    {node("node-a", "", ""), node("node-a", "annotations: {a: b}", ""), "labels of its node only"},
		"a finalizer":      {node("node-a", "", ""), node("node-a", "finalizers: [a/b]", ""), "labels of its node only"},
		"an owner":         {node("node-a", "", ""), node("node-a", "ownerReferences: [{uid: gone}]", ""), "labels of its node only"},
		"a taint":          {node("node-a", "", ""), node("node-a", "", "taints: [{key: a}]"), "labels of its node only"},
	} {
		in := func(user string, from, to map[string]any) map[string]any {
			extra := map[string]any{"authentication.kubernetes.io/node-name": []any{"node-a"}}
			return map[string]any{
				"request": map[string]any{"userInfo": map[string]any{"username": user, "extra": extra}, "operation": "UPDATE"}, "oldObject": from, "object": to,
			}
		}
		for _, pair := range [][2]map[string]any{{c.from, c.to}, {c.to, c.from}} {
			if _, denied := p.decide(t, in("system:serviceaccount:gpu-simulator:gpu-simulator", pair[0], pair[1])); (denied == "") != (c.denied == "") || !strings.Contains(denied, c.denied) {
				t.Errorf("%s: denied %q, want %q", name, denied, c.denied)
			}
		}
		if matched, _ := p.decide(t, in("admin", c.from, c.to)); matched {
			t.Errorf("%s: other users are matched", name)
		}
	}
}

// expression is an expression of the policy, with a name if it is a variable.
type expression struct{ name, text string }

func (e expression) GetName() string          { return e.name }
func (e expression) GetExpression() string    { return e.text }
func (e expression) ReturnTypes() []*cel.Type { return []*cel.Type{cel.AnyType} }

// TestPolicies_Expressions_TypeCheck guards against policies that an API server rejects.
func TestPolicies_Expressions_TypeCheck(t *testing.T) {
	for _, p := range loadPolicies(t, "admissionpolicy.yaml") {
		p.typeChecks(t)
	}
	for _, p := range loadPolicies(t, "policies.yaml", "--values", "testdata/values/policies.yaml") {
		p.typeChecks(t)
	}
}

func (p policy) typeChecks(t *testing.T) {
	t.Helper()
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	options := plugincel.OptionalVariableDeclarations{HasAuthorizer: true}
	check := func(text string, want *cel.Type) {
		t.Helper()
		r := compiler.CompileCELExpression(expression{text: text}, options, environment.NewExpressions)
		if r.Error != nil {
			t.Errorf("%s: %v", text, r.Error)
		} else if !r.OutputType.IsExactType(want) {
			t.Errorf("%s is a %s, want %s", text, r.OutputType, want)
		}
	}
	for _, c := range p.spec.MatchConditions {
		check(c.Expression, cel.BoolType)
	}
	for _, v := range p.spec.Variables {
		r := compiler.CompileAndStoreVariable(expression{v.Name, v.Expression}, options, environment.NewExpressions)
		if r.Error != nil {
			t.Errorf("%s: %v", v.Name, r.Error)
		}
	}
	for _, v := range p.spec.Validations {
		check(v.Expression, cel.BoolType)
		if v.MessageExpression != "" {
			check(v.MessageExpression, cel.StringType)
		}
	}
}
