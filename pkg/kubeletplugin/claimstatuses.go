// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"encoding/json"

	"k8s.io/api/resource/v1beta1"
	"k8s.io/api/resource/v1beta2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourceac "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	draclient "k8s.io/dynamic-resource-allocation/client"
)

// claimStatuses applies statuses of claims in the version of the API that the server has, as the library's client has
// found out: that one cannot apply. What of a status is applied here reads the same in every version.
type claimStatuses struct {
	client   kubernetes.Interface
	versions *draclient.Client
}

func (c claimStatuses) apply(ctx context.Context, claim *resourceac.ResourceClaimApplyConfiguration) error {
	namespace, options := *claim.Namespace, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	var err error
	switch c.versions.CurrentAPI() {
	case "V1beta2":
		var data []byte
		if data, err = json.Marshal(claim.WithAPIVersion(v1beta2.SchemeGroupVersion.String())); err == nil {
			_, err = c.client.ResourceV1beta2().ResourceClaims(namespace).Patch(ctx, *claim.Name, types.ApplyPatchType, data, options.ToPatchOptions(), "status")
		}
	case "V1beta1":
		var data []byte
		if data, err = json.Marshal(claim.WithAPIVersion(v1beta1.SchemeGroupVersion.String())); err == nil {
			_, err = c.client.ResourceV1beta1().ResourceClaims(namespace).Patch(ctx, *claim.Name, types.ApplyPatchType, data, options.ToPatchOptions(), "status")
		}
	default:
		_, err = c.client.ResourceV1().ResourceClaims(namespace).ApplyStatus(ctx, claim, options)
	}
	return err
}
