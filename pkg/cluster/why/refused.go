// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// creationFailed is the reason of the Events of kube-controller-manager about claims that it cannot create.
const creationFailed = "FailedResourceClaimCreation"

// RetryWithin is the age above which a refusal says nothing of the present: kube-controller-manager tries again before.
const RetryWithin = 20 * time.Minute

// refusal says when and why the API server last refused the claim for a reference of the pod, or "".
func (c *Cluster) refusal(pod *corev1.Pod, reference string, now time.Time) (text string, at time.Time) {
	var last *corev1.Event
	for _, e := range c.Events {
		if e != nil && e.Reason == creationFailed && strings.HasPrefix(e.Message, "PodResourceClaim "+reference+": ") &&
			(last == nil || Seen(last).Before(Seen(e))) {
			last = e
		}
	}
	if last == nil {
		return "", at
	}
	_, message, _ := strings.Cut(last.Message, ": ")
	message = strings.Join(strings.Fields(message), " ")
	return fmt.Sprintf(" (last attempt %s ago): %s; %s%s", age(now.Sub(Seen(last))), message, RefusalCure(message),
		retryText(message, pod)), Seen(last)
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
		if limit, ok := limited[name]; ok && asked.Cmp(limit) > 0 {
			return true
		}
	}
	return false
}

// retryText says when the claim of a pod is tried again. kube-controller-manager does so when the pod changes, and else
// after pauses that double up to 1,000 s (k8s.io/kubernetes/pkg/controller/resourceclaim and client-go's default rate
// limiter). A webhook or policy refuses the template's content, which cannot change.
func retryText(message string, pod *corev1.Pod) string {
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
