// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/cluster/waiting"
)

// Subject is a pod, or a claim without a pod.
type Subject struct {
	Pod   *corev1.Pod
	Claim *resourceapi.ResourceClaim
	// Replicas is the number of such pods that a workload of a file runs at a time, or 0 for a pod. Ends means that
	// they end by themselves.
	Replicas int
	Ends     bool
}

func (s Subject) String() string {
	if s.Pod != nil {
		return "pod " + podName(s.Pod)
	}
	return "claim " + ask.NameOf(s.Claim).String()
}

func podName(p *corev1.Pod) string {
	if p.Name == "" {
		return strings.TrimPrefix(p.Namespace+"/"+p.GenerateName+"…", "/")
	}
	return strings.TrimPrefix(ask.NameOf(p).String(), "/")
}

// wanted are the claims of a subject.
type wanted struct {
	// waiting need an allocation; allocated have one.
	waiting, allocated []*resourceapi.ResourceClaim
	// missing says what the scheduler waits for before it looks at devices.
	missing []Reason
	// unread are the names of objects that could not be read, so that the claims are not known.
	unread []string
	// large are the names of objects of which the caller knows too little, because they are too large for its memory.
	large []string
	// unserved are the extended resources of this vendor that no class serves.
	unserved []corev1.ResourceName
	// extended are the extended resources that a device class serves.
	extended []corev1.ResourceName
	notes    []string
}

// judge notes the objects of which the caller knows too little, because they are too large for its memory.
func (w *wanted) judge(c *Cluster, pod *corev1.Pod) {
	note := func(what string) {
		if !slices.Contains(w.large, what) {
			w.large = append(w.large, what)
		}
	}
	if pod != nil && bounded.TooLarge(pod) {
		note("the pod")
	}
	for _, claim := range w.waiting {
		if bounded.TooLarge(claim) {
			note("ResourceClaim " + claim.Name)
		}
	}
	classes := map[string]bool{}
	for _, class := range c.Classes {
		if class != nil && bounded.TooLarge(class) {
			classes[class.Name] = true
		}
	}
	for _, claim := range w.waiting {
		for q := range selector.Requests(claim.Spec.Devices.Requests) {
			if classes[q.DeviceClassName] {
				note("DeviceClass " + q.DeviceClassName)
			}
		}
	}
}

// claims finds the claims of a subject, and notes those that cannot be judged.
func (c *Cluster) claims(s Subject, now time.Time) wanted {
	w := c.found(s, now)
	w.judge(c, s.Pod)
	return w
}

// found finds the claims of a subject. A claim that is not yet made is taken from its template, unless it was refused.
func (c *Cluster) found(s Subject, now time.Time) wanted {
	var w wanted
	if s.Pod == nil {
		w.add(s.Claim)
		return w
	}
	claims := waiting.Index(c.Claims)
	templates := map[types.NamespacedName]*resourceapi.ResourceClaimTemplate{}
	for _, one := range c.Templates {
		if one != nil {
			templates[ask.NameOf(one)] = one
		}
	}
	for _, ref := range waiting.References(s.Pod, claims) {
		switch {
		case ref.Foreign != nil:
			w.miss("ResourceClaim %s belongs to another pod: %v", ref.Name, ref.Foreign)
			continue
		case ref.Claim != nil:
			w.add(ref.Claim)
			continue
		case ref.ResourceClaimTemplateName == nil:
			cure := "create it"
			if templates[types.NamespacedName{Namespace: s.Pod.Namespace, Name: ref.Name}] != nil {
				cure = "a ResourceClaimTemplate of this name does: write resourceClaimTemplateName"
			}
			w.miss("ResourceClaim %s does not exist in namespace %q; %s", ref.Name, s.Pod.Namespace, cure)
			continue
		}
		wanted := types.NamespacedName{Namespace: s.Pod.Namespace, Name: ref.Template()}
		template := templates[wanted]
		if template == nil && c.Failed(read.ResourceClaimTemplates) {
			w.unread = append(w.unread, "ResourceClaimTemplate "+ref.Template())
			continue
		}
		if template == nil {
			w.miss("ResourceClaimTemplate %s does not exist in namespace %q; %s", wanted.Name, wanted.Namespace,
				otherTemplate(wanted, templates, claims))
			continue
		}
		if bounded.TooLarge(template) {
			w.large = append(w.large, "ResourceClaimTemplate "+template.Name)
			continue
		}
		text, at := c.refusal(s.Pod, ref.PodResourceClaim.Name, now)
		made := s.Pod.CreationTimestamp.Time
		switch last := cmp.Or(at, made); {
		case s.Pod.UID == "" || made.IsZero() || now.Sub(last) < firstWord:
		case at.IsZero():
			w.miss("kube-controller-manager has not made the claim of template %s for %s: see whether it runs",
				template.Name, age(now.Sub(made)))
			continue
		case now.Sub(at) > RetryWithin:
			w.miss("kube-controller-manager has not made the claim of template %s for %s; its last attempt was %s "+
				"ago, and it tries again within 17 min: see whether it runs", template.Name, age(now.Sub(made)),
				age(now.Sub(at)))
			continue
		}
		if text != "" {
			w.miss("the claim of ResourceClaimTemplate %s could not be created%s", template.Name, text)
			continue
		}
		if s.Pod.UID != "" {
			w.notes = append(w.notes,
				fmt.Sprintf("The claim of template %s is not made yet; kube-controller-manager makes it.",
					template.Name))
		}
		w.add(fromTemplate(template, s.Pod.Name+"-"+ref.PodResourceClaim.Name))
	}
	resources := selector.ResourcesOf(c.Classes)
	w.extended = waiting.Served(s.Pod, resources)
	extended := waiting.ExtendedClaim(s.Pod, claims)
	if extended == nil {
		extended = w.extendedClaim(resources, s.Pod)
	}
	w.add(extended)
	w.unnamed(s.Pod)
	return w
}

// unnamed notes the claims that no container names: they are allocated, and no container gets their devices.
func (w *wanted) unnamed(pod *corev1.Pod) {
	for _, ref := range pod.Spec.ResourceClaims {
		named := false
		for _, one := range waiting.Containers(pod) {
			named = named || slices.ContainsFunc(one.Resources.Claims, func(r corev1.ResourceClaim) bool {
				return r.Name == ref.Name
			})
		}
		if containers := len(pod.Spec.InitContainers) + len(pod.Spec.Containers); !named && containers > 0 {
			w.notes = append(w.notes, fmt.Sprintf("no container names %s in resources.claims, so none gets its devices",
				ref.Name))
		}
	}
}

// serve explains the extended resources that no class serves. A device plugin can serve them.
func (a *asker) serve(w *wanted) {
	for _, name := range w.unserved {
		plugin := a.Nodes == nil || slices.ContainsFunc(a.Nodes, func(n *corev1.Node) bool {
			if n == nil {
				return false
			}
			q := n.Status.Allocatable[name]
			return !q.IsZero()
		})
		profile, partition := strings.CutPrefix(strings.TrimSuffix(string(name), ".shared"), "nvidia.com/mig-")
		lacks := ""
		if partition {
			lacks = a.lacksProfile(profile)
		}
		switch {
		case a.Failed(read.DeviceClasses):
			w.unread = append(w.unread, "the DeviceClasses")
		case partition && a.Failed(read.ResourceSlices):
			w.unread = append(w.unread, "ResourceSlices")
		case waiting.Implicit(name): // No device plugin can serve it.
			w.miss("no DeviceClass serves %s: there is no DeviceClass %s; ask for an existing one",
				name, strings.TrimPrefix(string(name), resourceapi.ResourceDeviceClassPrefix))
		case plugin:
			w.notes = append(w.notes,
				fmt.Sprintf("No DeviceClass has the extendedResourceName %s, so only a device plugin can serve it.",
					name))
		case lacks != "":
			w.missing = append(w.missing, Reason{Text: fmt.Sprintf("%s, so nothing serves %s", lacks, name)})
		default:
			w.miss("no DeviceClass has the extendedResourceName %s, and no node has a device plugin for it%s", name,
				a.otherResource(name))
		}
	}
}

func fromTemplate(t *resourceapi.ResourceClaimTemplate, name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: name, UID: types.UID(name)},
		Spec:       *t.Spec.Spec.DeepCopy(),
	}
}

func (w *wanted) add(claim *resourceapi.ResourceClaim) {
	switch {
	case claim == nil:
	case claim.DeletionTimestamp != nil: // The scheduler waits, whether it is allocated or not.
		w.miss("ResourceClaim %s is being deleted; the pod waits for a new one", claim.Name)
	case claim.Status.Allocation != nil:
		w.allocated = append(w.allocated, claim)
	default:
		claim = claim.DeepCopy()
		for i, q := range claim.Spec.Devices.Requests {
			claim.Spec.Devices.Requests[i] = ask.Defaulted(q) // Manifests lack the API server's defaults.
		}
		w.waiting = append(w.waiting, claim)
	}
}

func (w *wanted) miss(format string, args ...any) {
	w.missing = append(w.missing, Reason{Text: fmt.Sprintf(format, args...)})
}

// extendedClaim returns the claim that the scheduler makes for extended resources, such as nvidia.com/gpu, that a
// device class serves; nil without them.
func (w *wanted) extendedClaim(resources selector.Resources, pod *corev1.Pod) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace,
		Name: pod.Name + "-extended-resources", UID: "extended"}}
	for _, name := range waiting.Resources(pod) {
		class := resources.Class(name)
		if class == nil {
			if strings.HasPrefix(string(name), "nvidia.com/") || waiting.Implicit(name) {
				w.unserved = append(w.unserved, name)
			}
			continue
		}
		if first := resources.Shadows(class); first != nil && waiting.Implicit(name) {
			w.notes = append(w.notes, fmt.Sprintf("the scheduler may not know %s, because DeviceClass %s has the "+
				"extendedResourceName %s too; remove it from one of the two",
				name, first.Name, selector.Explicit(class)))
		}
	}
	claim.Spec.Devices.Requests = waiting.Requests(pod, resources)
	if len(claim.Spec.Devices.Requests) == 0 {
		return nil
	}
	return claim
}
