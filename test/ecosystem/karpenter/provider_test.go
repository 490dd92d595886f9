// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"context"
	"maps"
	"testing"
	"unique"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/test/v1alpha1"

	"gpu-dra-driver/pkg/gpu"
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
		DynamicResources: resources(clustertest.Predict(t, board, "new")),
	}
}

// resources returns the devices of a predicted node, as a provider reports them. UUIDs are unknown before the node runs, so an attribute
// binds the partitions of one GPU to each other. Monitor devices are left out, because Karpenter knows no taints.
func resources(predicted nodetemplate.Template) (out cloudprovider.DynamicResources) {
	siblings := map[string]*cloudprovider.AttributeBinding{}
	for _, s := range predicted.Slices {
		slice := &cloudprovider.ResourceSliceTemplate{
			Driver: unique.Make(s.Spec.Driver), Pool: cloudprovider.ResourcePool{Name: unique.Make(s.Spec.Pool.Name)}, SharedCounters: s.Spec.SharedCounters,
		}
		for _, d := range s.Spec.Devices {
			if *d.Attributes["type"].StringValue == string(gpu.KindMonitor) {
				continue
			}
			if parent := d.Attributes["parentUUID"].StringValue; parent != nil {
				binding := siblings[*parent]
				if binding == nil {
					binding = &cloudprovider.AttributeBinding{Attribute: resourceapi.QualifiedName(s.Spec.Driver + "/parentUUID")}
					siblings[*parent] = binding
					out.AttributeBindings = append(out.AttributeBindings, binding)
				}
				binding.Devices = append(binding.Devices, cloudprovider.DeviceID{
					Driver: unique.Make(s.Spec.Driver), Pool: unique.Make(s.Spec.Pool.Name), Device: unique.Make(d.Name),
				})
			}
			attributes := maps.Clone(d.Attributes)
			delete(attributes, "uuid")
			delete(attributes, "parentUUID")
			slice.Devices = append(slice.Devices, cloudprovider.Device{
				Name: unique.Make(d.Name), Attributes: attributes, Capacity: d.Capacity,
				AllowMultipleAllocations: ptr.Deref(d.AllowMultipleAllocations, false), ConsumesCounters: d.ConsumesCounters,
			})
		}
		if len(slice.Devices)+len(slice.SharedCounters) > 0 {
			out.ResourceSliceTemplates = append(out.ResourceSliceTemplates, slice)
		}
	}
	return out
}
