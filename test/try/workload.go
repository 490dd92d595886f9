// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/internal/testing/podsharestest"
	"gpu-dra-driver/pkg/cluster/podshares"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/test/demos"
)

// workload holds the objects of a demo's file.
type workload struct {
	pods    []*pod
	classes []*resourceapi.DeviceClass
	// quota limits the devices of a class in the demo's namespace.
	quota map[string]int64
}

// pod is a pod of a demo.
type pod struct {
	name string
	// annotations matter in a namespace whose pods ask for shares by them.
	annotations map[string]string
	spec        corev1.PodSpec
	// job is set for the pods of a Job: they end by themselves.
	job    bool
	claims []*claim
}

// claim is a claim of one pod or of several pods.
type claim struct {
	*resourceapi.ResourceClaim
	// origin identifies claims that are alike: the template, or the claim itself.
	origin   string
	prepared *prepared
}

// reader collects the objects of a demo.
type reader struct {
	workload
	board *board
	// tree is the source tree.
	tree      string
	namespace string
	templates map[string]resourceapi.ResourceClaimSpec
	shared    map[string]*claim
	claims    int
	// podShares means that pods of the namespace can ask for shares without a claim.
	podShares bool
}

// read reads a demo for a board. Extended resources become claims, as the scheduler makes them.
func read(tree string, d demos.Demo, b *board) (workload, error) {
	data, err := os.ReadFile(d.Path)
	if err != nil {
		return workload{}, err
	}
	r := reader{
		workload: workload{quota: map[string]int64{}}, board: b, tree: tree, namespace: d.Namespace(),
		templates: map[string]resourceapi.ResourceClaimSpec{}, shared: map[string]*claim{},
	}
	for text := range strings.SplitSeq(string(data), "\n---\n") {
		if err := r.object([]byte(text)); err != nil {
			return workload{}, fmt.Errorf("%s: %w", d.Path, err)
		}
	}
	if r.podShares {
		if err := r.changePods(); err != nil {
			return workload{}, fmt.Errorf("%s: %w", d.Path, err)
		}
	}
	for _, p := range r.pods {
		if err := r.claimsOf(p); err != nil {
			return workload{}, fmt.Errorf("%s: pod %s: %w", d.Path, p.name, err)
		}
	}
	return r.workload, nil
}

func (r *reader) object(text []byte) error {
	var head struct {
		Kind     string            `json:"kind"`
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal(text, &head); err != nil {
		return err
	}
	name := head.Metadata.Name
	switch head.Kind {
	case "Namespace":
		r.podShares = head.Metadata.Labels[podshares.Label(driver)] == "true"
	case "GPUBudget", "PriorityClass": // They only matter once all pods of the file have been placed.
	case "ResourceClaim":
		var c resourceapi.ResourceClaim
		if err := yaml.UnmarshalStrict(text, &c); err != nil {
			return err
		}
		r.shared[name] = r.newClaim(name, name, c.Spec)
	case "ResourceClaimTemplate":
		var t resourceapi.ResourceClaimTemplate
		if err := yaml.UnmarshalStrict(text, &t); err != nil {
			return err
		}
		r.templates[name] = t.Spec.Spec
	case "DeviceClass":
		c := &resourceapi.DeviceClass{}
		if err := yaml.UnmarshalStrict(text, c); err != nil {
			return err
		}
		r.classes = append(r.classes, c)
	case "ResourceQuota":
		var q corev1.ResourceQuota
		if err := yaml.UnmarshalStrict(text, &q); err != nil {
			return err
		}
		for resource, limit := range q.Spec.Hard {
			if class, ok := strings.CutSuffix(string(resource), ".deviceclass.resource.k8s.io/devices"); ok {
				r.quota[class] = limit.Value()
			}
		}
	case "Pod":
		var p corev1.Pod
		if err := yaml.UnmarshalStrict(text, &p); err != nil {
			return err
		}
		r.pods = append(r.pods, &pod{name: name, annotations: p.Annotations, spec: p.Spec})
	case "Deployment":
		var d appsv1.Deployment
		if err := yaml.UnmarshalStrict(text, &d); err != nil {
			return err
		}
		r.replicas(name, *d.Spec.Replicas, d.Spec.Template, false)
	case "Job":
		var j batchv1.Job
		if err := yaml.UnmarshalStrict(text, &j); err != nil {
			return err
		}
		r.replicas(name, *j.Spec.Completions, j.Spec.Template, true)
	default:
		return fmt.Errorf("%s %s: make try does not know this kind", head.Kind, name)
	}
	return nil
}

func (r *reader) replicas(name string, n int32, of corev1.PodTemplateSpec, job bool) {
	for i := range n {
		r.pods = append(r.pods, &pod{name: fmt.Sprintf("%s-%d", name, i+1), annotations: of.Annotations, spec: of.Spec, job: job})
	}
}

// changePods gives the pods claims, by the policy of the chart.
func (r *reader) changePods() error {
	manifest, err := os.ReadFile(filepath.Join(r.tree, "deployments", "helm", "testdata", "podshares.yaml"))
	if err != nil {
		return err
	}
	policy, err := podsharestest.Read(string(manifest))
	if err != nil {
		return err
	}
	for _, p := range r.pods {
		given := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name, Annotations: p.annotations}, Spec: p.spec}
		changed, err := policy.Change(context.Background(), given, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.namespace}})
		if err != nil {
			return fmt.Errorf("pod %s: %w", p.name, err)
		}
		p.spec = changed.Spec
		for _, c := range p.spec.ResourceClaims {
			if name := c.ResourceClaimTemplateName; name != nil && podshares.Named(*name) {
				if t := podshares.Template(driver, r.namespace, *name, podshares.MemorySizes([]pool.Pool{r.board.pool()})); t != nil {
					r.templates[*name] = t.Spec.Spec
				}
			}
		}
	}
	return nil
}

// newClaim makes a claim with the defaults of the API server.
func (r *reader) newClaim(name, origin string, spec resourceapi.ResourceClaimSpec) *claim {
	r.claims++
	spec = *spec.DeepCopy()
	for _, q := range spec.Devices.Requests {
		if e := q.Exactly; e != nil && e.AllocationMode == "" {
			e.AllocationMode, e.Count = resourceapi.DeviceAllocationModeExactCount, max(e.Count, 1)
		}
		for i := range q.FirstAvailable {
			if s := &q.FirstAvailable[i]; s.AllocationMode == "" {
				s.AllocationMode, s.Count = resourceapi.DeviceAllocationModeExactCount, max(s.Count, 1)
			}
		}
	}
	uid := types.UID(fmt.Sprintf("claim-%d", r.claims)) // Shorter than a real one.
	return &claim{origin: origin, ResourceClaim: &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.namespace, UID: uid}, Spec: spec,
	}}
}

func (r *reader) claimsOf(p *pod) error {
	for _, ref := range p.spec.ResourceClaims {
		if ref.ResourceClaimName != nil {
			c, ok := r.shared[*ref.ResourceClaimName]
			if !ok {
				return fmt.Errorf("there is no claim %s", *ref.ResourceClaimName)
			}
			p.claims = append(p.claims, c)
			continue
		}
		template, ok := r.templates[*ref.ResourceClaimTemplateName]
		if !ok {
			return fmt.Errorf("there is no claim template %s", *ref.ResourceClaimTemplateName)
		}
		p.claims = append(p.claims, r.newClaim(p.name+"-"+ref.Name, *ref.ResourceClaimTemplateName, template))
	}
	var spec resourceapi.ResourceClaimSpec
	for i, c := range p.spec.Containers {
		for n, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
			if !strings.HasPrefix(string(name), "nvidia.com/") {
				continue
			}
			count := c.Resources.Limits[name]
			spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{
				Name: fmt.Sprintf("container-%d-request-%d", i, n),
				Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: r.board.classOf(string(name)),
					AllocationMode:  resourceapi.DeviceAllocationModeExactCount, Count: count.Value(),
				},
			})
		}
	}
	if len(spec.Devices.Requests) > 0 {
		p.claims = append(p.claims, r.newClaim(p.name+"-extended-resources", "extended resources", spec))
	}
	return nil
}

// classOf is the class of an extended resource. Where there is none, the result is the resource, which no class is named.
func (b *board) classOf(resource string) string {
	if class := selector.ResourcesOf(slices.Collect(maps.Values(b.classes))).Class(corev1.ResourceName(resource)); class != nil {
		return class.Name
	}
	return resource
}
