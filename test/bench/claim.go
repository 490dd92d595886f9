// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

const (
	namespace = "bench"
	class     = "bench.gpu.nvidia.com"
)

// claims makes allocated claims as a scheduler would leave them, each for the device of its index.
func (b *bench) claims(ctx context.Context, devices []string, admin bool) ([]*drapb.Claim, error) {
	if err := b.ground(ctx); err != nil {
		return nil, err
	}
	var out []*drapb.Claim
	for _, device := range devices {
		b.number++
		request := resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}
		result := resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: "gpu.nvidia.com", Pool: b.node + "/gpu", Device: device,
		}
		if admin {
			request.Exactly.AdminAccess, result.AdminAccess = &admin, &admin
		}
		api := b.stage.Client.ResourceV1().ResourceClaims(namespace)
		made, err := api.Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", b.number)},
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
		out = append(out, &drapb.Claim{Namespace: namespace, Name: made.Name, Uid: string(made.UID)})
	}
	return out, nil
}

func (b *bench) ground(ctx context.Context) error {
	_, err := b.stage.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = b.stage.Client.ResourceV1().DeviceClasses().Create(ctx, &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: class},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// names lists the published GPUs.
func (b *bench) names(ctx context.Context) ([]string, error) {
	devices, err := b.stage.Devices(ctx, "gpu")
	var out []string
	for _, d := range devices {
		out = append(out, d.Name)
	}
	return out, err
}
