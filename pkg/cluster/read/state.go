// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

// Resource names a kind of objects that an answer relies on, as people read it.
type Resource string

// The resources.
const (
	ResourceSlices         Resource = "ResourceSlices"
	ResourceClaims         Resource = "ResourceClaims"
	ResourceClaimTemplates Resource = "ResourceClaimTemplates"
	DeviceClasses          Resource = "DeviceClasses"
	DeviceTaintRules       Resource = "DeviceTaintRules"
	Nodes                  Resource = "Nodes"
	Pods                   Resource = "Pods"
	// ClaimPods are the pods that could wait for a claim.
	ClaimPods            Resource = "pods"
	Events               Resource = "Events"
	ResourceQuotas       Resource = "ResourceQuotas"
	GPUBudgets           Resource = "GPUBudgets"
	PodDisruptionBudgets Resource = "PodDisruptionBudgets"
	Webhooks             Resource = "ValidatingWebhookConfigurations"
	GPUClusters          Resource = "GPUClusters"
	Namespaces           Resource = "Namespaces"
	DaemonSets           Resource = "DaemonSets"
	Deployments          Resource = "Deployments"
	Leases               Resource = "Leases"
)

// States has the end of the read of each resource: nil if all its objects were read, else the error. Then there are no
// objects, or only those of one namespace, and the others are unknown, not absent. A resource without a state was not
// asked for.
type States map[Resource]error

// Complete reports whether all objects of a resource were read.
func (s States) Complete(r Resource) bool {
	err, asked := s[r]
	return asked && err == nil
}

// Failed reports whether objects of a resource could not be read.
func (s States) Failed(r Resource) bool { return s[r] != nil }
