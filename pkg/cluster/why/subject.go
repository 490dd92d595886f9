// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
			w.miss("ResourceClaim %s does not exist in namespace %q; create it", ref.Name, s.Pod.Namespace)
			continue
		}
		template := templates[types.NamespacedName{Namespace: s.Pod.Namespace, Name: ref.Template()}]
		if template == nil && c.Failed(read.ResourceClaimTemplates) {
			w.unread = append(w.unread, "ResourceClaimTemplate "+ref.Template())
			continue
		}
		if template == nil {
			w.miss("ResourceClaimTemplate %s does not exist in namespace %q; create it", ref.Template(),
				s.Pod.Namespace)
			continue
		}
		if bounded.TooLarge(template) {
			w.large = append(w.large, "ResourceClaimTemplate "+template.Name)
			continue
		}
		if text := c.refusal(s.Pod, ref.PodResourceClaim.Name, now); text != "" {
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
func (a *asker) serve(c *Cluster, w *wanted) {
	for _, name := range w.unserved {
		plugin := c.Nodes == nil || slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool {
			if n == nil {
				return false
			}
			q := n.Status.Allocatable[name]
			return !q.IsZero()
		})
		profile, partition := strings.CutPrefix(string(name), "nvidia.com/mig-")
		lacks := ""
		if partition {
			lacks = a.lacksProfile(c, profile)
		}
		switch {
		case c.Failed(read.DeviceClasses):
			w.unread = append(w.unread, "the DeviceClasses")
		case partition && c.Failed(read.ResourceSlices):
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
			w.miss("no DeviceClass has the extendedResourceName %s, and no node has a device plugin for it", name)
		}
	}
}

// creationFailed is the reason of the Events of kube-controller-manager about claims that it cannot create.
const creationFailed = "FailedResourceClaimCreation"

// refusal says when and why the API server last refused the claim for a reference of the pod, or "".
func (c *Cluster) refusal(pod *corev1.Pod, reference string, now time.Time) string {
	var last *corev1.Event
	for _, e := range c.Events {
		if e != nil && e.Reason == creationFailed && strings.HasPrefix(e.Message, "PodResourceClaim "+reference+": ") &&
			(last == nil || Seen(last).Before(Seen(e))) {
			last = e
		}
	}
	if last == nil {
		return ""
	}
	_, message, _ := strings.Cut(last.Message, ": ")
	message = strings.Join(strings.Fields(message), " ")
	return fmt.Sprintf(" (last attempt %s ago): %s; %s%s", age(now.Sub(Seen(last))), message, RefusalCure(message),
		again(message, pod))
}

// RefusalCure says how an object can be created that the API server refused.
func RefusalCure(message string) string {
	switch {
	case strings.Contains(message, "exceeded quota") && exceeds(message):
		return "have the quota raised, or ask for less: it is too small even without other pods"
	case strings.Contains(message, "exceeded quota"):
		return "end other pods or claims of the namespace, or have the quota raised"
	case strings.Contains(message, "denied the request"), strings.Contains(message, "is invalid"):
		return "correct what it names"
	}
	return "see the message"
}

// exceeds reports whether the request alone is more than a quota allows, by the API server's message, such as
// `requested: a=2,b=1, used: a=0,b=0, limited: a=1,b=5`.
func exceeds(message string) bool {
	amounts := func(after string) map[string]resource.Quantity {
		out := map[string]resource.Quantity{}
		_, rest, _ := strings.Cut(message, after+": ")
		rest, _, _ = strings.Cut(rest, ", ")
		for one := range strings.SplitSeq(rest, ",") {
			name, value, _ := strings.Cut(strings.TrimRight(one, ". "), "=")
			if q, err := resource.ParseQuantity(value); err == nil {
				out[name] = q
			}
		}
		return out
	}
	limited := amounts("limited")
	for name, asked := range amounts("requested") {
		if most, ok := limited[name]; ok && asked.Cmp(most) > 0 {
			return true
		}
	}
	return false
}

// again says when the claim of a pod is tried again. kube-controller-manager does so when the pod changes, and else
// after pauses that double up to 1,000 s (k8s.io/kubernetes/pkg/controller/resourceclaim and client-go's default rate
// limiter). A webhook or policy refuses the template's content, which cannot change.
func again(message string, pod *corev1.Pod) string {
	if strings.Contains(message, "denied the request") || strings.Contains(message, "is invalid") {
		return ". " + remake(pod)
	}
	return fmt.Sprintf(". Kubernetes tries again within 17 min, or at once after: kubectl -n %s annotate pod %s "+
		"retry=1 --overwrite", pod.Namespace, pod.Name)
}

// change says how a subject of a cluster gets other claims. A subject of a file changes there.
func (s Subject) change() string {
	switch {
	case s.Pod == nil && s.Claim.UID != "":
		return "Claims do not change: delete it and its pod, and create them again"
	case s.Pod == nil || s.Pod.UID == "":
		return ""
	case slices.ContainsFunc(s.Pod.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool {
		return r.ResourceClaimTemplateName != nil
	}):
		return remake(s.Pod)
	case len(s.Pod.Spec.ResourceClaims) > 0:
		return "Claims do not change: delete the pod and its claim, and create them again"
	}
	return "Pods do not change: delete it, and create it again with other limits"
}

// remake says how a pod gets other claims: neither a template's claim nor the pod's references can change.
func remake(pod *corev1.Pod) string {
	const template = "Templates do not change: replace it (kubectl replace --force), then "
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return template + fmt.Sprintf("delete the pod, and %s %s creates another", owner.Kind, owner.Name)
	}
	return template + "create the pod again"
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

// gates says what holds a pod back before the scheduler looks at it.
func gates(pod *corev1.Pod) (out []Reason) {
	for _, g := range pod.Spec.SchedulingGates {
		text := "the pod has the scheduling gate %s; its owner must remove it"
		if strings.HasPrefix(g.Name, "kueue.x-k8s.io/") {
			text = "Kueue has not admitted the pod (scheduling gate %s); look at its Workload and LocalQueue"
		}
		out = append(out, Reason{Text: fmt.Sprintf(text, g.Name)})
	}
	return out
}
