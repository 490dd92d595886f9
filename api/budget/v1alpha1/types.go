// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Names of the API.
const (
	Version  = "v1alpha1"
	Kind     = "GPUBudget"
	Resource = "gpubudgets"
	// Name is the only name that a budget can have, because a namespace has one budget.
	Name = "default"
	// MaxModels and MaxReservations are the limits of the lists in the schema.
	MaxModels, MaxReservations = 64, 512
)

// GroupVersionResource returns the resource of a driver's budgets.
func GroupVersionResource(driver string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: driver, Version: Version, Resource: Resource}
}

// NamespaceLabel returns the label of namespaces whose claims the API server sends to the webhook. Its value is "true".
func NamespaceLabel(driver string) string { return driver + "/budget" }

// GPUBudget limits the GPUs of a namespace.
type GPUBudget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec   `json:"spec"`
	Status Status `json:"status,omitzero"`
}

// Spec is the part of an administrator.
type Spec struct {
	// Hard has the limits. A limit that is absent does not bind.
	Hard Amounts `json:"hard,omitzero"`
}

// Amounts are the limits, the use or the charge of all models, and of some.
type Amounts struct {
	Amount `json:",inline"`
	// Models has an entry for each model with a limit of its own.
	Models []Model `json:"models,omitempty"`
}

// Amount is a number of GPUs and their memory.
type Amount struct {
	// GPUs counts a whole GPU as 1, and a group as the number of its GPUs. A partition counts as its part of the GPU's
	// memory slices, and a share as the larger of its parts of memory and compute, in thousandths.
	GPUs *resource.Quantity `json:"gpus,omitempty"`
	// Memory is in bytes.
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// Model is the amount of one model.
type Model struct {
	// ProductName is the attribute productName of the devices, such as "NVIDIA H100 80GB HBM3".
	ProductName string `json:"productName"`
	Amount      `json:",inline"`
}

// Status is the part of the controller.
type Status struct {
	// ObservedGeneration is the generation of the spec that Hard repeats.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Hard has the limits in force.
	Hard Amounts `json:"hard,omitzero"`
	// Used is the charge of the namespace's claims, with the reservations.
	Used Amounts `json:"used,omitzero"`
	// Reservations are the charges of claims that the webhook allowed and that the controller has not counted yet.
	Reservations []Reservation `json:"reservations,omitempty"`
	// CountedVersion is a resourceVersion of claims: all changes until then are counted. Empty: nothing was counted
	// yet.
	CountedVersion string             `json:"countedVersion,omitempty"`
	Conditions     []metav1.Condition `json:"conditions,omitempty"`
}

// Exceeded is the type of the condition that is true while the use is larger than a limit.
const Exceeded = "Exceeded"

// Reservation is the charge of a claim that is being created.
type Reservation struct {
	// Claim and UID are the name and UID of the claim.
	Claim string    `json:"claim"`
	UID   types.UID `json:"uid"`
	// For is the pod and the entry of its spec for which Kubernetes itself makes the claim. After a refusal it tries
	// again with another name, so of all reservations for one entry the largest counts. Users cannot set it.
	For string `json:"for,omitempty"`
	// Since is by the clock of the instance that made the reservation, for people. The leader measures the age itself.
	Since metav1.MicroTime `json:"since"`
	// Charge is part of Status.Used.
	Charge Amounts `json:"charge,omitzero"`
}
