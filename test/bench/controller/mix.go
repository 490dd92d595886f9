// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// mixed is one kind of object in the mix of reviews.
type mixed struct {
	what string
	// answer is allowed, warned or denied.
	answer string
	// admit means that the object names the driver, so that the API server calls the webhook that denies.
	admit bool
	kind  string
	// spec is YAML. In each object a number replaces N.
	spec string
}

// claim returns a request with the given fields of its devices.
func claim(exactly string) string {
	return "{devices: {requests: [{name: gpu, exactly: {" + exactly + ", allocationMode: ExactCount, count: 1}}]}}"
}

// with adds parameters to a claim.
func with(exactly, parameters string) string {
	return strings.TrimSuffix(claim(exactly), "}}") +
		", config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, " + parameters + "}}}]}}"
}

func by(expression string) string {
	return fmt.Sprintf("selectors: [{cel: {expression: %q}}]", expression)
}

const attribute = `device.attributes["gpu.nvidia.com"].`

// mix lists the objects to review in turn. One in seven does not repeat earlier content.
var mix = []mixed{
	{"one GPU", "allowed", false, "ResourceClaim", claim("deviceClassName: gpu.nvidia.com")},
	{"one GPU, template", "allowed", false, "ResourceClaimTemplate", "{spec: " + claim("deviceClassName: gpu.nvidia.com") + "}"},
	{"by model", "allowed", true, "ResourceClaim", claim("deviceClassName: gpu.nvidia.com, " + by(attribute+`productName == "NVIDIA H100 80GB HBM3"`))},
	{"by memory, never seen", "allowed", true, "ResourceClaim", claim("deviceClassName: gpu.nvidia.com, " + by(`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("NKi")) >= 0`))},
	{"a fraction", "allowed", false, "ResourceClaim", claim("deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 10Gi}}")},
	{"a fraction, never seen", "allowed", false, "ResourceClaim", claim("deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: NKi}}")},
	{"time slices", "allowed", true, "ResourceClaim", with("deviceClassName: gpu.nvidia.com", "kind: GpuConfig, sharing: {strategy: TimeSlicing}")},
	{"parameters that are wrong", "denied", true, "ResourceClaim", with("deviceClassName: gpu.nvidia.com", "kind: GpuConfig, sharring: {}")},
	{"one GPU of the model's class", "allowed", false, "ResourceClaim", claim("deviceClassName: nvidia-h100-80gb-hbm3.gpu.nvidia.com")},
	{"a partition by profile", "allowed", true, "ResourceClaim", claim("deviceClassName: mig.nvidia.com, " + by(attribute+`profile == "1g.10gb"`))},
	{"a profile that is none", "warned", true, "ResourceClaim", claim("deviceClassName: mig.nvidia.com, " + by(attribute+`profile == "1g.11gb"`))},
	{"seven partitions of a GPU", "allowed", true, "ResourceClaim", strings.Replace(strings.Replace(claim("deviceClassName: mig.nvidia.com, "+by(attribute+`profile == "1g.10gb"`)),
		"count: 1", "count: 7", 1), "{devices: {", "{devices: {constraints: [{matchAttribute: gpu.nvidia.com/parentUUID}], ", 1)},
	{"four linked GPUs", "allowed", true, "ResourceClaimTemplate", "{spec: " + claim("deviceClassName: nvlink.gpu.nvidia.com, "+by(attribute+"gpuCount == 4")) + "}"},
	{"nine GPUs", "warned", false, "ResourceClaim", strings.Replace(claim("deviceClassName: gpu.nvidia.com"), "count: 1", "count: 9", 1)},
	{"more memory than there is, never seen", "warned", true, "ResourceClaim", claim("deviceClassName: gpu.nvidia.com, " + by(`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("NGi")) >= 0`))},
	{"a network card", "allowed", false, "ResourceClaim", claim("deviceClassName: nic.example.com")},
	{"MPS", "allowed", true, "ResourceClaim", with("deviceClassName: gpu.nvidia.com", "kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 50}}")},
	{"parameters of the wrong kind", "denied", true, "ResourceClaim", strings.Replace(with("deviceClassName: mig.nvidia.com", "kind: GpuConfig"), "[{opaque", "[{requests: [gpu], opaque", 1)},
	{"a class", "allowed", true, "DeviceClass", "{selectors: [{cel: {expression: " + fmt.Sprintf("%q", `device.driver == "gpu.nvidia.com" && `+attribute+`type == "gpu"`) + "}}]}"},
	{"a class that fails", "denied", true, "DeviceClass", "{selectors: [{cel: {expression: " + fmt.Sprintf("%q", attribute+`profile == "1g.10gb"`) + "}}]}"},
	{"a class of another driver", "allowed", false, "DeviceClass", "{selectors: [{cel: {expression: 'device.driver == \"nic.example.com\"'}}]}"},
}

var resources = map[string]string{"ResourceClaim": "resourceclaims", "ResourceClaimTemplate": "resourceclaimtemplates", "DeviceClass": "deviceclasses"}

// reviews returns n reviews.
func reviews(n int) ([]question, error) {
	out := make([]question, n)
	for i := range out {
		kind := mix[i%len(mix)]
		text := fmt.Sprintf("{apiVersion: resource.k8s.io/v1, kind: %s, metadata: {name: bench-%d}, spec: %s}", kind.kind, i,
			strings.ReplaceAll(strings.ReplaceAll(kind.spec, "NKi", fmt.Sprintf("%dKi", 1<<20+i)), "NGi", fmt.Sprintf("%dGi", 1<<10+i)))
		object, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind.what, err)
		}
		out[i] = question{kind: kind, path: "/advise"}
		if kind.admit {
			out[i].path = "/admit"
		}
		out[i].body, err = json.Marshal(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
			Request: &admissionv1.AdmissionRequest{
				UID: types.UID(fmt.Sprint(i)), Name: fmt.Sprintf("bench-%d", i), Namespace: "bench", Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: object},
				Kind:     metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: kind.kind},
				Resource: metav1.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: resources[kind.kind]},
			},
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
