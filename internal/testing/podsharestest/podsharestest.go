// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package podsharestest changes pods as the API server does by the chart's MutatingAdmissionPolicy for shares without a
// claim. It has the API server's own packages.
package podsharestest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// Policy is the policy of a manifest.
type Policy struct {
	compiler *plugincel.CompositedCompiler
	patcher  patch.Patcher
}

// variable is a variable of the policy.
type variable struct{ name, text string }

func (v variable) GetName() string          { return v.name }
func (v variable) GetExpression() string    { return v.text }
func (v variable) ReturnTypes() []*cel.Type { return []*cel.Type{cel.AnyType} }

// Read compiles the policy of a manifest.
func Read(manifest string) (*Policy, error) {
	var p admissionv1.MutatingAdmissionPolicy
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		if strings.Contains(doc, "\nkind: MutatingAdmissionPolicy\n") {
			if err := yaml.UnmarshalStrict([]byte(doc), &p); err != nil {
				return nil, err
			}
		}
	}
	if len(p.Spec.Mutations) != 1 { // A second one would see the pod of the first.
		return nil, fmt.Errorf("%d mutations, want 1", len(p.Spec.Mutations))
	}
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, err
	}
	o := plugincel.OptionalVariableDeclarations{HasAuthorizer: true}
	for _, v := range p.Spec.Variables {
		compiled := compiler.CompileAndStoreVariable(variable{v.Name, v.Expression}, o, environment.NewExpressions)
		if compiled.Error != nil {
			return nil, fmt.Errorf("variable %s: %w", v.Name, compiled.Error)
		}
	}
	o.HasPatchTypes = true
	text := &patch.JSONPatchCondition{Expression: p.Spec.Mutations[0].JSONPatch.Expression}
	evaluator := compiler.CompileMutatingEvaluator(text, o, environment.NewExpressions)
	return &Policy{compiler, patch.NewJSONPatcher(evaluator)}, errors.Join(evaluator.CompilationErrors()...)
}

// Change returns the pod as the API server stores it. The pod matches the policy.
func (p *Policy) Change(ctx context.Context, pod *corev1.Pod, namespace *corev1.Namespace) (*corev1.Pod, error) {
	kind, resource := corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithResource("pods")
	attributes := admission.NewAttributesRecord(pod, nil, kind, namespace.Name, pod.Name, resource, "", admission.Create,
		&metav1.CreateOptions{}, false, nil)
	interfaces := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	versioned, err := admission.NewVersionedAttributes(attributes, kind, interfaces)
	if err != nil {
		return nil, err
	}
	out, err := p.patcher.Patch(p.compiler.CreateContext(ctx), patch.Request{
		MatchedResource: resource, VersionedAttributes: versioned, ObjectInterfaces: interfaces, Namespace: namespace,
	}, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return nil, err
	}
	changed, ok := out.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("the policy returned a %T", out)
	}
	return changed, nil
}
