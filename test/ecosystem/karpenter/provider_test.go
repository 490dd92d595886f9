// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"context"
	"testing"
	"unique"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/test/v1alpha1"

	"gpu-dra-driver/pkg/node/nodetemplate"
	"gpu-dra-driver/test/ecosystem/clustertest"
)

// provider offers one instance type for each board. It is only asked for instance types, since no node is made.
type provider struct {
	cloudprovider.CloudProvider
	types []*cloudprovider.InstanceType
}

func (p provider) Name() string { return "boards" }

func (p provider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.TestNodeClass{}}
}

func (p provider) GetInstanceTypes(context.Context, *karpenterv1.NodePool) ([]*cloudprovider.InstanceType, error) {
	return p.types, nil
}

// instanceType copies the predicted devices of a board, as a cloud provider would.
func instanceType(t *testing.T, board string, price float64) *cloudprovider.InstanceType {
	t.Helper()
	return &cloudprovider.InstanceType{
		Name: board,
		Requirements: scheduling.NewLabelRequirements(map[string]string{
			corev1.LabelInstanceTypeStable: board, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
			corev1.LabelTopologyZone: "zone-a", karpenterv1.CapacityTypeLabelKey: karpenterv1.CapacityTypeOnDemand,
		}),
		Offerings: cloudprovider.Offerings{{
			Available: true, Price: price,
			Requirements: scheduling.NewLabelRequirements(map[string]string{
				corev1.LabelTopologyZone: "zone-a", karpenterv1.CapacityTypeLabelKey: karpenterv1.CapacityTypeOnDemand,
			}),
		}},
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("192"), corev1.ResourceMemory: resource.MustParse("2Ti"), corev1.ResourcePods: resource.MustParse("250"),
		},
		Overhead:         &cloudprovider.InstanceTypeOverhead{},
		DynamicResources: resources(clustertest.Predict(t, board, "new").Karpenter()),
	}
}

func resources(predicted nodetemplate.Karpenter) (out cloudprovider.DynamicResources) {
	for _, s := range predicted.ResourceSliceTemplates {
		slice := &cloudprovider.ResourceSliceTemplate{
			Driver: unique.Make(s.Driver), Pool: cloudprovider.ResourcePool{Name: unique.Make(s.Pool.Name)}, SharedCounters: s.SharedCounters,
		}
		for _, d := range s.Devices {
			slice.Devices = append(slice.Devices, cloudprovider.Device{
				Name: unique.Make(d.Name), Attributes: d.Attributes, Capacity: d.Capacity,
				AllowMultipleAllocations: d.AllowMultipleAllocations, ConsumesCounters: d.ConsumesCounters,
			})
		}
		out.ResourceSliceTemplates = append(out.ResourceSliceTemplates, slice)
	}
	for _, b := range predicted.AttributeBindings {
		binding := &cloudprovider.AttributeBinding{Attribute: b.Attribute}
		for _, d := range b.Devices {
			binding.Devices = append(binding.Devices, cloudprovider.DeviceID{
				Driver: unique.Make(d.Driver), Pool: unique.Make(d.Pool), Device: unique.Make(d.Device),
			})
		}
		out.AttributeBindings = append(out.AttributeBindings, binding)
	}
	return out
}
