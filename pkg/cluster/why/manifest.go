// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/ask"
)

// Manifest holds the objects of a file that the package judges.
type Manifest struct {
	// Pods include the pod templates of workloads, such as Deployments and Jobs.
	Pods      []Subject
	Claims    []*resourceapi.ResourceClaim
	Templates []*resourceapi.ResourceClaimTemplate
	Classes   []*resourceapi.DeviceClass
	// Refused are the answers about objects that an API server refuses, or that are not known here.
	Refused []Answer
	// Unread names the objects that were not looked at.
	Unread []string
}

// maxManifest bounds the memory for a file.
const maxManifest = 16 << 20

// ReadManifest reads YAML or JSON documents, and lists of them. Objects without a namespace get the given one.
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
		m.add(raw, namespace, fmt.Sprintf("document %d", n), true)
	}
}

// strict decodes objects like an API server for kubectl: it refuses unknown fields.
var strict = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

func (m *Manifest) add(raw json.RawMessage, namespace, place string, lists bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return
	}
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        struct{ Namespace, Name string } `json:"metadata"`
		Items           []json.RawMessage                `json:"items"`
	}
	_ = json.Unmarshal(raw, &head) // The decoder below names the fault.
	if lists && len(head.Items) > 0 {
		for i, one := range head.Items {
			m.add(one, namespace, fmt.Sprintf("%s, item %d", place, i+1), false)
		}
		return
	}
	if head.Metadata.Namespace == "" {
		head.Metadata.Namespace = namespace
	}
	subject := strings.TrimSpace(head.Kind + " " + head.Metadata.Namespace + "/" + head.Metadata.Name)
	if head.Metadata.Name == "" {
		subject = strings.TrimSpace(head.Kind + " of " + place)
	}
	group, version, _ := strings.Cut(head.APIVersion, "/")
	switch {
	case group != resourceapi.GroupName || version == "v1":
	case version == "v1beta2": // Its objects are equal.
		raw = bytes.Replace(raw, []byte(head.APIVersion), []byte(resourceapi.SchemeGroupVersion.String()), 1)
	default:
		m.refuse(subject, fmt.Sprintf("it has the API version %s; write it in resource.k8s.io/v1", version))
		return
	}
	o, _, err := strict.Decode(raw, nil, nil)
	switch {
	case runtime.IsNotRegisteredError(err):
		var content map[string]any
		if json.Unmarshal(raw, &content) == nil && m.unknown(head.Metadata.Namespace, head.Metadata.Name,
			content["spec"], nil) {
			m.Unread = append(m.Unread, "the number of pods of "+subject)
		} else {
			m.Unread = append(m.Unread, subject)
		}
	case err != nil:
		m.refuse(subject, err.Error()+mended(err.Error(), string(raw)))
	default:
		m.object(o, head.Metadata.Namespace, subject)
	}
}

func (m *Manifest) refuse(subject, why string) {
	a := Answer{Subject: subject}
	a.refused(why)
	m.Refused = append(m.Refused, a)
}

func (a *Answer) refused(why string) {
	a.Result, a.Summary = Refused, fmt.Sprintf("%s is refused: %s.", a.Subject, why)
}

func (m *Manifest) object(o runtime.Object, namespace, subject string) {
	if meta, ok := o.(metav1.Object); ok {
		meta.SetNamespace(namespace)
	}
	pods := func(meta metav1.ObjectMeta, t corev1.PodTemplateSpec, s Subject) {
		s.Pod = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: meta.Name, Labels: t.Labels}, Spec: t.Spec,
		}
		m.pod(s)
	}
	job := func(meta metav1.ObjectMeta, j batchv1.JobSpec) {
		n := min(ptr.Deref(j.Parallelism, 1), ptr.Deref(j.Completions, ptr.Deref(j.Parallelism, 1)))
		pods(meta, j.Template, Subject{Replicas: int(n), Ends: true})
	}
	switch o := o.(type) {
	case *corev1.Pod:
		m.pod(Subject{Pod: o})
	case *resourceapi.ResourceClaim:
		m.Claims = append(m.Claims, o)
	case *resourceapi.ResourceClaimTemplate:
		m.Templates = append(m.Templates, o)
	case *resourceapi.DeviceClass:
		o.Namespace = ""
		m.Classes = append(m.Classes, o)
	case *appsv1.Deployment:
		pods(o.ObjectMeta, o.Spec.Template, Subject{Replicas: int(ptr.Deref(o.Spec.Replicas, 1))})
	case *appsv1.ReplicaSet:
		pods(o.ObjectMeta, o.Spec.Template, Subject{Replicas: int(ptr.Deref(o.Spec.Replicas, 1))})
	case *appsv1.StatefulSet:
		pods(o.ObjectMeta, o.Spec.Template, Subject{Replicas: int(ptr.Deref(o.Spec.Replicas, 1))})
	case *appsv1.DaemonSet:
		m.Unread = append(m.Unread, "all pods but one of "+subject)
		pods(o.ObjectMeta, o.Spec.Template, Subject{})
	case *batchv1.Job:
		job(o.ObjectMeta, o.Spec)
	case *batchv1.CronJob:
		job(o.ObjectMeta, o.Spec.JobTemplate.Spec)
	default:
		m.Unread = append(m.Unread, subject)
	}
}

// pod adds a pod, unless an API server refuses it.
func (m *Manifest) pod(s Subject) {
	if why := invalidPod(s.Pod); why != "" {
		m.refuse(s.String(), why)
		return
	}
	if asksForShare(s.Pod) {
		m.Unread = append(m.Unread, "the share that API servers give "+s.String()+" with the chart value podShares")
	}
	m.Pods = append(m.Pods, s)
}

// asksForShare reports whether a policy of the chart can replace words of the pod by a claim for a share.
func asksForShare(pod *corev1.Pod) bool {
	for _, word := range []string{"gpu.nvidia.com/memory", "gpu-fraction", "gpu-memory"} {
		if _, ok := pod.Annotations[word]; ok {
			return true
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, word := range []corev1.ResourceName{"gpumem", "gpumem-percentage", "gpucores"} {
			if _, ok := c.Resources.Limits["nvidia.com/"+word]; ok {
				return true
			}
		}
	}
	return false
}

// invalidPod says why an API server refuses the resources of a pod, or "".
func invalidPod(pod *corev1.Pod) string {
	named := map[string]bool{}
	for _, r := range pod.Spec.ResourceClaims {
		named[r.Name] = true
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, claim := range c.Resources.Claims {
			if !named[claim.Name] {
				return fmt.Sprintf("container %s names the claim %s, which resourceClaims lacks", c.Name, claim.Name)
			}
		}
		for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			for _, name := range slices.Sorted(maps.Keys(list)) {
				q := list[name]
				_, whole := q.AsInt64()
				limit, limited := c.Resources.Limits[name]
				extended := strings.Contains(string(name), "/")
				switch {
				case q.Sign() < 0:
					return fmt.Sprintf("container %s: %s: %s is less than 0", c.Name, name, q.String())
				case extended && !whole:
					return fmt.Sprintf("container %s: %s: %s is not a whole number", c.Name, name, q.String())
				case extended && (!limited || limit.Cmp(q) != 0):
					return fmt.Sprintf("container %s: %s: the limit and the request must be equal", c.Name, name)
				}
			}
		}
	}
	return ""
}

// unknown adds the pods in an object of a kind that is not known here, and reports whether there are any.
func (m *Manifest) unknown(namespace, name string, part any, path []string) (found bool) {
	switch part := part.(type) {
	case []any:
		for i, one := range part {
			found = m.unknown(namespace, name, one, append(path, strconv.Itoa(i))) || found
		}
	case map[string]any:
		if containers, ok := part["containers"].([]any); ok && len(containers) > 0 {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
				Name: strings.Join(append([]string{name}, path...), "-")}}
			if runtime.DefaultUnstructuredConverter.FromUnstructured(part, &pod.Spec) == nil {
				m.pod(Subject{Pod: pod})
				return true
			}
		}
		for _, key := range slices.Sorted(maps.Keys(part)) {
			next := path
			if key != "spec" && key != "template" {
				next = append(slices.Clone(path), key)
			}
			found = m.unknown(namespace, name, part[key], next) || found
		}
	}
	return found
}

// Subjects returns the pods, and the claims and templates that no pod names.
func (m *Manifest) Subjects() []Subject {
	out := slices.Clone(m.Pods)
	named := map[types.NamespacedName]bool{}
	templates := map[types.NamespacedName]bool{}
	for _, s := range m.Pods {
		for _, r := range s.Pod.Spec.ResourceClaims {
			named[types.NamespacedName{Namespace: s.Pod.Namespace, Name: ptr.Deref(r.ResourceClaimName, "")}] = true
			templates[types.NamespacedName{Namespace: s.Pod.Namespace,
				Name: ptr.Deref(r.ResourceClaimTemplateName, "")}] = true
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

// AddTo adds the claims, templates and classes to a cluster, in place of its own of the same names.
func (m *Manifest) AddTo(c *Cluster) {
	c.Claims = overlay(c.Claims, m.Claims)
	c.Templates = overlay(c.Templates, m.Templates)
	c.Classes = overlay(c.Classes, m.Classes)
}

func overlay[T metav1.Object](all, added []T) []T {
	replaced := map[types.NamespacedName]bool{}
	for _, one := range added {
		replaced[ask.NameOf(one)] = true
	}
	kept := slices.DeleteFunc(slices.Clone(all), func(one T) bool { return replaced[ask.NameOf(one)] })
	return append(kept, added...)
}
