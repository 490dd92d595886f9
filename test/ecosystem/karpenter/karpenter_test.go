// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package karpenter has Karpenter's scheduler decide about new nodes, with the devices that `kubectl gpu slices` predicts.
package karpenter

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/object"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"
	"sigs.k8s.io/karpenter/pkg/test/v1alpha1"

	"gpu-dra-driver/test/ecosystem/clustertest"
)

// request is a pod's only request.
type request struct {
	class, selector string
	count           int64
	memory          string
	matchAttribute  resourceapi.FullyQualifiedName
}

func (r request) spec() resourceapi.ResourceClaimSpec {
	exactly := resourceapi.ExactDeviceRequest{
		DeviceClassName: r.class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: max(1, r.count),
	}
	if r.selector != "" {
		exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: r.selector}}}
	}
	if r.memory != "" {
		exactly.Capacity = &resourceapi.CapacityRequirements{
			Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(r.memory)},
		}
	}
	claim := resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &exactly}}}
	if r.matchAttribute != "" {
		claim.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &r.matchAttribute}}
	}
	return resourceapi.ResourceClaimSpec{Devices: claim}
}

// TestSchedule_PredictedBoards_NewNodes counts the nodes that Karpenter would make for a number of equal pods.
func TestSchedule_PredictedBoards_NewNodes(t *testing.T) {
	const (
		attributes = "device.attributes['gpu.nvidia.com']."
		l40s       = attributes + "productName == 'NVIDIA L40S'"
		oneG       = attributes + "profile == '1g.10gb'"
		ofFour     = attributes + "gpuCount == 4"
	)
	boards := []*cloudprovider.InstanceType{instanceType(t, "hgx-h100", 8), instanceType(t, "l40s-4", 2)}
	var classes []client.Object
	for _, c := range clustertest.Classes(t, clustertest.Predict(t, "hgx-h100", "a"), clustertest.Predict(t, "l40s-4", "b")) {
		classes = append(classes, c)
	}
	for name, tt := range map[string]struct {
		request
		pods int
		// nodes are the instance types that each new node can have.
		nodes []string
	}{
		"a GPU of any model":               {request{class: "gpu.nvidia.com"}, 1, []string{"hgx-h100 l40s-4"}},
		"more GPUs than a small node has":  {request{class: "gpu.nvidia.com"}, 5, []string{"hgx-h100"}},
		"nine GPUs":                        {request{class: "gpu.nvidia.com", selector: "!(" + l40s + ")"}, 9, []string{"hgx-h100", "hgx-h100"}},
		"a partition":                      {request{class: "mig-1g.10gb.nvidia.com"}, 1, []string{"hgx-h100"}},
		"all partitions of eight GPUs":     {request{class: "mig.nvidia.com", selector: oneG}, 56, []string{"hgx-h100"}},
		"one partition more":               {request{class: "mig.nvidia.com", selector: oneG}, 57, []string{"hgx-h100", "hgx-h100"}},
		"seven partitions of one GPU":      {request{class: "mig.nvidia.com", selector: oneG, count: 7, matchAttribute: "gpu.nvidia.com/parentUUID"}, 8, []string{"hgx-h100"}},
		"two groups of four":               {request{class: "nvlink-4.gpu.nvidia.com"}, 2, []string{"hgx-h100"}},
		"three groups of four":             {request{class: "nvlink.gpu.nvidia.com", selector: ofFour}, 3, []string{"hgx-h100", "hgx-h100"}},
		"fractions that fill a small node": {request{class: "gpu.nvidia.com", selector: l40s, memory: "10Gi"}, 16, []string{"l40s-4"}},
		"one fraction more":                {request{class: "gpu.nvidia.com", selector: l40s, memory: "10Gi"}, 17, []string{"l40s-4", "l40s-4"}},
		"a model that no type has":         {request{class: "gpu.nvidia.com", selector: attributes + "productName == 'NVIDIA H200'"}, 1, nil},
		"a monitor device without admin":   {request{class: "monitor.gpu.nvidia.com"}, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, refused := schedule(t, boards, classes, slices.Repeat([]request{tt.request}, tt.pods))
			if !slices.Equal(nodes, tt.nodes) || (len(refused) > 0) != (tt.nodes == nil) {
				t.Errorf("new nodes %q, want %q; refused: %v", nodes, tt.nodes, refused)
			}
		})
	}
	t.Run("a group of four and five GPUs", func(t *testing.T) {
		one := request{class: "gpu.nvidia.com", selector: "!(" + l40s + ")"}
		nodes, refused := schedule(t, boards, classes, append(slices.Repeat([]request{one}, 5), request{class: "nvlink.gpu.nvidia.com", selector: ofFour}))
		if !slices.Equal(nodes, []string{"hgx-h100", "hgx-h100"}) {
			t.Errorf("new nodes %q, refused: %v", nodes, refused)
		}
	})
}

// schedule returns the instance types of each node that Karpenter would make, and the errors of pods without a node.
func schedule(t *testing.T, boards []*cloudprovider.InstanceType, classes []client.Object, requests []request) (nodes []string, refused []error) {
	t.Helper()
	ctx := options.ToContext(t.Context(), &options.Options{
		CPURequests: 1000, PreferencePolicy: options.PreferencePolicyRespect, MinValuesPolicy: options.MinValuesPolicyStrict,
	})
	class := &v1alpha1.TestNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "class"}}
	pool := &karpenterv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "gpus", UID: "pool"}}
	pool.Spec.Template.Spec.NodeClassRef = &karpenterv1.NodeClassReference{
		Group: object.GVK(class).Group, Kind: object.GVK(class).Kind, Name: class.Name,
	}
	pool.StatusConditions().SetTrue(karpenterv1.ConditionTypeValidationSucceeded)
	pool.StatusConditions().SetTrue(karpenterv1.ConditionTypeNodeClassReady)
	objects := append([]client.Object{pool}, classes...)
	for i, r := range requests {
		pod, claim := podOf(i, r)
		objects = append(objects, pod, claim)
	}
	api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithStatusSubresource(pool).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		Build()
	p := provider{types: boards}
	cluster := state.NewCluster(clock.RealClock{}, api, p)
	allocations := deviceallocation.NewController(api)
	allocations.Hydrate(ctx)
	provisioner := provisioning.NewProvisioner(api, events.NewRecorder(&record.FakeRecorder{}), p, cluster, clock.RealClock{},
		allocations, virtualpods.NewVirtualPodCache(api))
	results, err := provisioner.Schedule(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range results.NewNodeClaims {
		var names []string
		for _, it := range n.InstanceTypeOptions {
			names = append(names, it.Name)
		}
		slices.Sort(names)
		nodes = append(nodes, strings.Join(names, " "))
	}
	for _, err := range results.PodErrors {
		refused = append(refused, err)
	}
	slices.Sort(nodes)
	return nodes, refused
}

// podOf returns a pod that waits, and its claim.
func podOf(i int, r request) (*corev1.Pod, *resourceapi.ResourceClaim) {
	name := fmt.Sprintf("pod-%d", i)
	meta := metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}
	pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
		Containers: []corev1.Container{{
			Name: "c", Image: "c", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
		}},
	}}
	pod.Status.Phase = corev1.PodPending
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
	}}
	return pod, &resourceapi.ResourceClaim{ObjectMeta: meta, Spec: r.spec()}
}
