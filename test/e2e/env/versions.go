// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"encoding/json"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	draclient "k8s.io/dynamic-resource-allocation/client"
)

// newestVersion returns a client with the interface of resource.k8s.io/v1 for any version of the server. For v1 it is
// the plain client, because the converting client cannot patch.
func newestVersion(client kubernetes.Interface) (kubernetes.Interface, error) {
	_, err := client.Discovery().ServerResourcesForGroupVersion(resourceapi.SchemeGroupVersion.String())
	if apierrors.IsNotFound(err) {
		return older{client}, nil
	}
	return client, err
}

type older struct{ kubernetes.Interface }

func (o older) ResourceV1() resourcev1.ResourceV1Interface {
	return olderResources{draclient.New(o.Interface), o.Interface}
}

type olderResources struct {
	*draclient.Client
	plain kubernetes.Interface
}

func (o olderResources) ResourceClaims(namespace string) resourcev1.ResourceClaimInterface {
	return olderClaims{o.Client.ResourceClaims(namespace), o.plain, namespace}
}

type olderClaims struct {
	resourcev1.ResourceClaimInterface
	plain     kubernetes.Interface
	namespace string
}

// UpdateStatus replaces the library's function, which panics for versions before v1beta2. A status has the same JSON
// in every version.
func (o olderClaims) UpdateStatus(ctx context.Context, claim *resourceapi.ResourceClaim, _ metav1.UpdateOptions) (*resourceapi.ResourceClaim, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion}, "status": claim.Status,
	})
	if err != nil {
		return nil, err
	}
	_, err = o.plain.ResourceV1beta2().ResourceClaims(o.namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		_, err = o.plain.ResourceV1beta1().ResourceClaims(o.namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return nil, err
	}
	return o.Get(ctx, claim.Name, metav1.GetOptions{})
}
