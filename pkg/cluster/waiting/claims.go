// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"
)

// Claims are the claims of a cluster.
type Claims interface {
	// Claim returns a claim, or nil.
	Claim(namespace, name string) *resourceapi.ResourceClaim
}

// ByName are the claims of a list.
type ByName map[types.NamespacedName]*resourceapi.ResourceClaim

// Index returns the claims of a list, which can have nil.
func Index(all []*resourceapi.ResourceClaim) ByName {
	out := make(ByName, len(all))
	for _, c := range all {
		if c != nil {
			out[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
		}
	}
	return out
}

// Claim implements Claims.
func (b ByName) Claim(namespace, name string) *resourceapi.ResourceClaim {
	return b[types.NamespacedName{Namespace: namespace, Name: name}]
}

// Reference is a pod's reference to a claim.
type Reference struct {
	*corev1.PodResourceClaim
	// Name is the claim's. It is empty while kube-controller-manager has not made the claim.
	Name string
	// Claim is nil if there is none of that name.
	Claim *resourceapi.ResourceClaim
	// Foreign says why the claim is not the pod's.
	Foreign error
}

// Template is the name of the claim's template, or "".
func (r Reference) Template() string { return ptr.Deref(r.ResourceClaimTemplateName, "") }

// References returns the references of a pod to claims, without those for which it needs none.
func References(pod *corev1.Pod, claims Claims) (out []Reference) {
	for i := range pod.Spec.ResourceClaims {
		r := Reference{PodResourceClaim: &pod.Spec.ResourceClaims[i]}
		name, own, err := resourceclaim.Name(pod, r.PodResourceClaim)
		if err == nil && name == nil {
			continue
		}
		if err == nil {
			r.Name, r.Claim = *name, claims.Claim(pod.Namespace, *name)
		}
		if r.Claim != nil && own {
			r.Foreign = resourceclaim.IsForPod(pod, r.Claim, true)
		}
		out = append(out, r)
	}
	return out
}

// Made returns the claims of a pod that exist, and last the one for its extended resources.
func Made(pod *corev1.Pod, claims Claims) (out []*resourceapi.ResourceClaim) {
	for _, ref := range References(pod, claims) {
		out = append(out, ref.Claim)
	}
	out = append(out, ExtendedClaim(pod, claims))
	return slices.DeleteFunc(out, func(c *resourceapi.ResourceClaim) bool { return c == nil })
}

// ExtendedClaim returns the claim that the scheduler made for the extended resources of a pod, or nil.
func ExtendedClaim(pod *corev1.Pod, claims Claims) *resourceapi.ResourceClaim {
	if made := pod.Status.ExtendedResourceClaimStatus; made != nil {
		return claims.Claim(pod.Namespace, made.ResourceClaimName)
	}
	return nil
}
