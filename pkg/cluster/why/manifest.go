// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"gpu-dra-driver/pkg/cluster/ask"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
)

// Manifest holds the objects of a file that the package judges.
type Manifest struct {
	// Pods include the pod templates of workloads, such as Deployments and Jobs.
	Pods      []*corev1.Pod
	Claims    []*resourceapi.ResourceClaim
	Templates []*resourceapi.ResourceClaimTemplate
}

// maxManifest bounds the memory for a file.
const maxManifest = 16 << 20

// ReadManifest reads YAML or JSON documents, and lists of them. Objects without a namespace get the given one; objects
// of other kinds are left out.
func ReadManifest(r io.Reader, namespace string) (*Manifest, error) {
	m := &Manifest{}
	limited := &io.LimitedReader{R: r, N: maxManifest}
	decoder := yaml.NewYAMLOrJSONDecoder(limited, 4096)
	for n := 1; ; n++ {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		switch {
		case limited.N <= 0:
			return nil, fmt.Errorf("the manifest has more than %d MiB", maxManifest>>20)
		case errors.Is(err, io.EOF):
			return m, nil
		case err != nil:
			return nil, fmt.Errorf("document %d of the manifest: %w", n, err)
		}
		if err := m.add(raw, namespace, 0); err != nil {
			return nil, fmt.Errorf("document %d of the manifest: %w", n, err)
		}
	}
}

// object is the part of an object that identifies it.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Items []json.RawMessage `json:"items"`
	Spec  struct {
		Template json.RawMessage `json:"template"`
		// JobTemplate is a CronJob's.
		JobTemplate json.RawMessage `json:"jobTemplate"`
	} `json:"spec"`
}

func (m *Manifest) add(raw json.RawMessage, namespace string, depth int) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var head object
	if err := json.Unmarshal(raw, &head); err != nil {
		// Objects of other kinds can have fields of these names with other types.
		var kind metav1.TypeMeta
		if json.Unmarshal(raw, &kind) == nil &&
			!slices.Contains([]string{"Pod", "ResourceClaim", "ResourceClaimTemplate"}, kind.Kind) {
			return nil
		}
		return err
	}
	if head.Namespace == "" {
		head.Namespace = namespace
	}
	version := head.GroupVersionKind().Version
	if head.GroupVersionKind().Group == resourceapi.GroupName && version != "v1" && version != "v1beta2" {
		return fmt.Errorf("%s %s has the API version %s; write it in resource.k8s.io/v1", head.Kind, head.Name, version)
	}
	switch {
	case len(head.Items) > 0 && depth == 0:
		for _, one := range head.Items {
			if err := m.add(one, namespace, depth+1); err != nil {
				return err
			}
		}
	case head.Kind == "Pod":
		return addTo(&m.Pods, raw, head)
	case head.Kind == "ResourceClaim":
		return addTo(&m.Claims, raw, head)
	case head.Kind == "ResourceClaimTemplate":
		return addTo(&m.Templates, raw, head)
	default:
		return m.workload(head, 0)
	}
	return nil
}

func addTo[T any, P interface {
	*T
	metav1.Object
}](all *[]P, raw json.RawMessage, head object) error {
	o := P(new(T))
	if err := json.Unmarshal(raw, o); err != nil {
		return fmt.Errorf("%s %s: %w", head.Kind, head.Name, err)
	}
	o.SetNamespace(head.Namespace)
	*all = append(*all, o)
	return nil
}

// workload adds the pod template of an object that has one.
func (m *Manifest) workload(head object, depth int) error {
	raw := head.Spec.Template
	if len(head.Spec.JobTemplate) > 0 && depth == 0 {
		job := head
		job.Spec.Template, job.Spec.JobTemplate = nil, nil
		if err := json.Unmarshal(head.Spec.JobTemplate, &job); err != nil {
			return nil //nolint:nilerr // It is not a CronJob.
		}
		job.Kind, job.Name, job.Namespace = head.Kind, head.Name, head.Namespace
		return m.workload(job, depth+1)
	}
	if len(raw) == 0 {
		return nil
	}
	var t corev1.PodTemplateSpec
	if json.Unmarshal(raw, &t) != nil || len(t.Spec.Containers) == 0 {
		return nil // It is not a pod template.
	}
	m.Pods = append(m.Pods, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: head.Namespace, Name: head.Name, Labels: t.Labels}, Spec: t.Spec,
	})
	return nil
}

// Subjects returns the pods, and the claims and templates that no pod names.
func (m *Manifest) Subjects() (out []Subject) {
	named := map[types.NamespacedName]bool{}
	templates := map[types.NamespacedName]bool{}
	for _, p := range m.Pods {
		out = append(out, Subject{Pod: p})
		for _, r := range p.Spec.ResourceClaims {
			named[types.NamespacedName{Namespace: p.Namespace, Name: ptr.Deref(r.ResourceClaimName, "")}] = true
			templates[types.NamespacedName{Namespace: p.Namespace, Name: ptr.Deref(r.ResourceClaimTemplateName, "")}] =
				true
		}
	}
	for _, c := range m.Claims {
		if !named[ask.NameOf(c)] {
			out = append(out, Subject{Claim: c})
		}
	}
	for _, t := range m.Templates {
		if !templates[ask.NameOf(t)] {
			out = append(out, Subject{Claim: fromTemplate(t, t.Name)})
		}
	}
	return out
}

// AddTo adds the claims and templates to a cluster, in place of its own of the same names.
func (m *Manifest) AddTo(c *Cluster) {
	c.Claims = overlay(c.Claims, m.Claims)
	c.Templates = overlay(c.Templates, m.Templates)
}

func overlay[T metav1.Object](all, added []T) []T {
	replaced := map[types.NamespacedName]bool{}
	for _, one := range added {
		replaced[ask.NameOf(one)] = true
	}
	kept := slices.DeleteFunc(slices.Clone(all), func(one T) bool { return replaced[ask.NameOf(one)] })
	return append(kept, added...)
}
