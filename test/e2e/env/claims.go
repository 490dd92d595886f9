// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// ByHand is the namespace of the claims of AllocatedClaims.
const ByHand = "by-hand"

const classByHand = "by-hand.gpu.nvidia.com"

// Part is one request of a claim, and the device that it has.
type Part struct {
	Device string
	Admin  bool
	// Memory makes the request a share of the device. Parameters are for the driver, as JSON.
	Memory, Parameters string
}

// AllocatedClaims creates claims and allocates them as a scheduler would, each with the device of its index in a
// pool. It is for tests that call the plugin in place of the kubelet.
func (e *Env) AllocatedClaims(ctx context.Context, pool string, devices []string, admin bool) ([]*drapb.Claim, error) {
	return e.allocateEach(ctx, pool, devices, Part{Admin: admin})
}

// AllocatedShares creates claims that have a share each, with the given memory, of the device of its index.
func (e *Env) AllocatedShares(ctx context.Context, pool string, devices []string, memory string) ([]*drapb.Claim, error) {
	return e.allocateEach(ctx, pool, devices, Part{Memory: memory})
}

func (e *Env) allocateEach(ctx context.Context, pool string, devices []string, part Part) ([]*drapb.Claim, error) {
	var out []*drapb.Claim
	for _, part.Device = range devices {
		c, err := e.AllocatedClaim(ctx, pool, part)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// AllocatedClaim creates one claim of all parts, and allocates it as a scheduler would.
func (e *Env) AllocatedClaim(ctx context.Context, pool string, parts ...Part) (*drapb.Claim, error) {
	if err := e.createByHand(ctx); err != nil {
		return nil, err
	}
	var spec resourceapi.DeviceClaim
	var allocated resourceapi.DeviceAllocationResult
	for i, part := range parts {
		name := fmt.Sprintf("gpu-%d", i)
		request := resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: classByHand}}
		result := resourceapi.DeviceRequestAllocationResult{Request: name, Driver: Driver, Pool: pool, Device: part.Device}
		if part.Admin {
			request.Exactly.AdminAccess, result.AdminAccess = &part.Admin, &part.Admin
		}
		if part.Memory != "" {
			id := uuid.NewUUID()
			result.ShareID = &id
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(part.Memory)}
		}
		if part.Parameters != "" {
			config := resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: Driver, Parameters: runtime.RawExtension{Raw: []byte(part.Parameters)},
			}}
			allocated.Config = append(allocated.Config, resourceapi.DeviceAllocationConfiguration{
				Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{name}, DeviceConfiguration: config,
			})
		}
		spec.Requests, allocated.Results = append(spec.Requests, request), append(allocated.Results, result)
	}
	api := e.Client.ResourceV1().ResourceClaims(ByHand)
	made, err := api.Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "claim-"}, Spec: resourceapi.ResourceClaimSpec{Devices: spec},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	made.Status.Allocation = &resourceapi.AllocationResult{Devices: allocated}
	if made, err = api.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return &drapb.Claim{Namespace: ByHand, Name: made.Name, Uid: string(made.UID)}, nil
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
