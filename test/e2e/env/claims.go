// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// ByHand is the namespace of the claims of AllocatedClaims.
const ByHand = "by-hand"

const classByHand = "by-hand.gpu.nvidia.com"

// AllocatedClaims creates claims and allocates them as a scheduler would, each with the device of its index in a
// pool. It is for tests that call the plugin in place of the kubelet.
func (e *Env) AllocatedClaims(ctx context.Context, pool string, devices []string, admin bool) ([]*drapb.Claim, error) {
	return e.createAllocated(ctx, pool, devices, admin, "")
}

// AllocatedShares creates claims that have a share each, with the given memory, of the device of its index.
func (e *Env) AllocatedShares(ctx context.Context, pool string, devices []string, memory string) ([]*drapb.Claim, error) {
	return e.createAllocated(ctx, pool, devices, false, memory)
}

func (e *Env) createAllocated(ctx context.Context, pool string, devices []string, admin bool, memory string) ([]*drapb.Claim, error) {
	if err := e.createByHand(ctx); err != nil {
		return nil, err
	}
	var out []*drapb.Claim
	for _, device := range devices {
		request := resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: classByHand}}
		result := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: Driver, Pool: pool, Device: device}
		if admin {
			request.Exactly.AdminAccess, result.AdminAccess = &admin, &admin
		}
		if memory != "" {
			id := uuid.NewUUID()
			result.ShareID = &id
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
		}
		api := e.Client.ResourceV1().ResourceClaims(ByHand)
		made, err := api.Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "claim-"},
			Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		made.Status.Allocation = &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}},
		}
		if made, err = api.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			return nil, err
		}
		out = append(out, &drapb.Claim{Namespace: ByHand, Name: made.Name, Uid: string(made.UID)})
	}
	return out, nil
}

func (e *Env) createByHand(ctx context.Context) error {
	_, err := e.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: ByHand, Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = e.Client.ResourceV1().DeviceClasses().Create(ctx, &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: classByHand},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}
