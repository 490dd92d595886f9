// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package kueue has Kueue's own code charge workloads for predicted nodes, with the configuration of demo/kueue.
package kueue

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	configapi "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueueapi "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/dra"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/pkg/node/nodetemplate"
	"gpu-dra-driver/test/ecosystem/clustertest"
)

const (
	h100 = "nvidia-h100-80gb-hbm3.gpu.nvidia.com"
	// gpuBytes is the memory of an H100, and partitionBytes that of its smallest partition.
	gpuBytes       = 81559 << 20
	partitionBytes = 9856 << 20
)

func selecting(expression string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
}

func exactly(class, expression string, change func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
	out := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	if expression != "" {
		out.Selectors = selecting(expression)
	}
	if change != nil {
		change(out)
	}
	return resourceapi.DeviceRequest{Name: "gpu", Exactly: out}
}

func count(n int64) func(*resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) { r.Count = n }
}

// mapper reads the mappings of demo/kueue as Kueue does.
func mapper(t *testing.T) *dra.ResourceMapper {
	t.Helper()
	data, err := os.ReadFile("../../../demo/kueue/configuration.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c configapi.Configuration
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		t.Fatal(err)
	}
	out := dra.NewResourceMapper()
	if err := out.PopulateFromConfiguration(c.Resources.DeviceClassMappings); err != nil {
		t.Fatal(err)
	}
	return out
}

// cluster is an API server with a node of H100 and a node of L40S.
func cluster(t *testing.T, more ...client.Object) client.Client {
	t.Helper()
	nodes := []nodetemplate.Template{clustertest.Predict(t, "hgx-h100", "a"), clustertest.Predict(t, "l40s-4", "b")}
	objects := more
	for _, n := range nodes {
		for i := range n.Slices {
			objects = append(objects, &n.Slices[i])
		}
	}
	for _, c := range clustertest.Classes(t, nodes...) {
		objects = append(objects, c)
	}
	return fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).
		WithIndex(&resourceapi.ResourceSlice{}, "spec.driver", func(o client.Object) []string {
			return []string{o.(*resourceapi.ResourceSlice).Spec.Driver}
		}).
		WithIndex(&resourceapi.DeviceClass{}, "spec.extendedResourceName", func(o client.Object) []string {
			if name := o.(*resourceapi.DeviceClass).Spec.ExtendedResourceName; name != nil {
				return []string{*name}
			}
			return nil
		}).Build()
}

// charge calls the functions of Kueue's workload controller in its order. It returns the quota that a pod uses, or an error
// that keeps the workload out of its queue.
func charge(t *testing.T, m *dra.ResourceMapper, pod corev1.PodSpec, template *resourceapi.ResourceClaimTemplate) (map[string]int64, error) {
	t.Helper()
	var more []client.Object
	if template != nil {
		more = append(more, template)
	}
	api := cluster(t, more...)
	workload := &kueueapi.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "w"}, Spec: kueueapi.WorkloadSpec{
		PodSets: []kueueapi.PodSet{{Name: "main", Count: 1, Template: corev1.PodTemplateSpec{Spec: pod}}},
	}}
	cache := dra.NewResourceSliceCache(api)
	out := map[string]int64{}
	add := func(all map[kueueapi.PodSetReference]corev1.ResourceList, errs field.ErrorList) error {
		for name, quantity := range all["main"] {
			out[string(name)] += quantity.Value()
		}
		if len(errs) > 0 {
			return errs.ToAggregate()
		}
		return nil
	}
	if err := add(dra.GetResourceRequestsForResourceClaimTemplates(t.Context(), api, cache, m, workload)); err != nil {
		return nil, err
	}
	extended, _, errs := dra.ResolveExtendedResourceQuota(t.Context(), api, m, workload)
	if err := add(extended, errs); err != nil {
		return nil, err
	}
	return out, add(dra.GetCounterResourcesForWorkload(t.Context(), api, cache, m, workload))
}

// ofRequest charges a pod with a claim template of one request.
func ofRequest(t *testing.T, r resourceapi.DeviceRequest) (map[string]int64, error) {
	t.Helper()
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "t"}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{r}
	return charge(t, mapper(t), corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template.Name}}}, template)
}

func TestCharge_ClaimTemplates_UseQuota(t *testing.T) {
	const oneG = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
	for name, tt := range map[string]struct {
		resourceapi.DeviceRequest
		resource string
		want     int64
	}{
		"a GPU, by memory":                  {exactly(h100, "", nil), "h100-memory", gpuBytes},
		"two GPUs, by memory":               {exactly(h100, "", count(2)), "h100-memory", 2 * gpuBytes},
		"a partition, by memory":            {exactly("mig.nvidia.com", oneG, nil), "h100-memory", partitionBytes},
		"a group of four, by memory":        {exactly("nvlink.gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].gpuCount == 4", nil), "h100-memory", 4 * gpuBytes},
		"any group, charged as the largest": {exactly("nvlink.gpu.nvidia.com", "", nil), "h100-memory", 8 * gpuBytes},
		"GPUs of any model, by number":      {exactly("gpu.nvidia.com", "", count(3)), "gpus", 3},
		"a partition, by number":            {exactly("mig-1g.10gb.nvidia.com", "", nil), "partitions-1g", 1},
		"a group of four, by number":        {exactly("nvlink-4.gpu.nvidia.com", "", nil), "groups-of-4", 1},
		"a fraction, charged as the whole GPU": {exactly(h100, "", func(r *resourceapi.ExactDeviceRequest) {
			r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")}}
		}), "h100-memory", gpuBytes},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ofRequest(t, tt.DeviceRequest)
			if err != nil || !maps.Equal(got, map[string]int64{tt.resource: tt.want}) {
				t.Errorf("charged %v, %v; want %s %d", got, err, tt.resource, tt.want)
			}
		})
	}
}

func TestCharge_RequestsThatKueueCannotCount_Refused(t *testing.T) {
	yes := true
	for name, tt := range map[string]struct {
		resourceapi.DeviceRequest
		want string
	}{
		"alternatives": {resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
			{Name: "a", DeviceClassName: h100}, {Name: "b", DeviceClassName: "mig.nvidia.com"},
		}}, "FirstAvailable"},
		"all devices": {exactly(h100, "", func(r *resourceapi.ExactDeviceRequest) {
			r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeAll, 0
		}), "AllocationMode 'All'"},
		"admin access":                    {exactly("monitor.gpu.nvidia.com", "", func(r *resourceapi.ExactDeviceRequest) { r.AdminAccess = &yes }), "AdminAccess"},
		"a class without a mapping":       {exactly("nvlink-8.gpu.nvidia.com", "", nil), "not mapped"},
		"more than the cluster has":       {exactly(h100, "", count(9)), "8 device(s) match but 9 requested"},
		"a selector of no device":         {exactly("mig.nvidia.com", "device.attributes['gpu.nvidia.com'].profile == '9g'", nil), "0 device(s) match"},
		"an attribute that a group lacks": {exactly("nvlink.gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].uuid != ''", nil), "no such key"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ofRequest(t, tt.DeviceRequest)
			if !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("charged %v, and the error is %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestCharge_ExtendedResources_UseQuotaOfTheirClass(t *testing.T) {
	pod := func(name corev1.ResourceName, n string) corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{name: resource.MustParse(n)},
		}}}}
	}
	m := mapper(t)
	for _, tt := range []struct {
		name     corev1.ResourceName
		n        string
		resource string
		want     int64
	}{
		{"nvidia.com/gpu", "2", "gpus", 2},
		{"nvidia.com/mig-1g.10gb", "1", "partitions-1g", 1},
		{"nvidia.com/mig-2g.20gb", "1", "nvidia.com/mig-2g.20gb", 1}, // No mapping: the resource has a quota of its own.
	} {
		got, err := charge(t, m, pod(tt.name, tt.n), nil)
		if err != nil || !maps.Equal(got, map[string]int64{tt.resource: tt.want}) {
			t.Errorf("%s: charged %v, %v; want %s %d", tt.name, got, err, tt.resource, tt.want)
		}
	}
	counters := dra.NewResourceMapper()
	if err := counters.PopulateFromConfiguration([]configapi.DeviceClassMapping{{
		Name: "memory", DeviceClassNames: []corev1.ResourceName{"gpu.nvidia.com"},
		Sources: []configapi.DeviceClassSourceConfig{{Counter: &configapi.DeviceClassCounterSource{
			Name: "memory", Driver: clustertest.Driver, DeviceSelector: selecting("true")[0],
		}}},
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := charge(t, counters, pod("nvidia.com/gpu", "1"), nil); !strings.Contains(fmt.Sprint(err), "counters configured") {
		t.Errorf("a class with a counter: %v", err)
	}
}
