//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/test/e2e/env"
)

// part has a request ask for 10 GiB.
func part(r resourceapi.DeviceRequest, name resourceapi.QualifiedName, selectors ...string) resourceapi.DeviceRequest {
	r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{name: resource.MustParse("10Gi")}}
	for _, s := range selectors {
		r.Exactly.Selectors = append(r.Exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	return r
}

// waitShareable waits until claims can share some GPUs of the node, or none.
func waitShareable(ctx context.Context, t *testing.T, want bool) {
	t.Helper()
	must(t, cluster.Eventually(ctx, fmt.Sprintf("GPUs that claims can share: %v", want), 90*time.Second, func(ctx context.Context) (bool, string) {
		gpus, err := cluster.Devices(ctx, "gpu")
		n := 0
		for _, d := range gpus {
			_, later := d.Attributes["maxShares"]
			if ptr.Deref(d.AllowMultipleAllocations, false) && !later && len(d.Taints) == 0 {
				n++
			}
		}
		return len(gpus) > 0 && (n > 0) == want && n < len(gpus), fmt.Sprintf("%d of %d, %v", n, len(gpus), err)
	}))
}

// TestAuto_ClaimsAskForShares_NodeSharesGPUs has the first claims for a share wait for it, instead of taking a whole GPU.
func TestAuto_ClaimsAskForShares_NodeSharesGPUs(t *testing.T) {
	ctx := testContext(t)
	forgetDemand(ctx, t)
	waitShareable(ctx, t, false)
	namespace := createNamespace(ctx, t, nil)
	createClaim(ctx, t, namespace, "whole", "")
	createPod(ctx, t, namespace, "whole", "whole", nil)
	waitRunning(ctx, t, namespace, "whole")
	waitShareable(ctx, t, false)

	began := time.Now()
	for i := range 3 {
		name := fmt.Sprint("share-", i)
		_, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{part(request("gpu", env.Driver), "memory")}}},
		}, metav1.CreateOptions{})
		must(t, err)
		createPod(ctx, t, namespace, name, name, nil)
	}
	for i := range 3 {
		p := waitRunning(ctx, t, namespace, fmt.Sprint("share-", i))
		claims, err := cluster.Claims(ctx, p)
		must(t, err)
		for _, r := range env.Results(claims[0]) {
			if bytes, ok := env.Share(r); !ok || bytes != 10<<30 {
				t.Errorf("%s has %d bytes of %s, want a share of 10 GiB", p.Name, bytes, r.Device)
			}
		}
	}
	t.Logf("3 pods with the node's first shares run after %s", time.Since(began))
	waitShareable(ctx, t, true)
	// The pod with a whole GPU keeps it.
	waitRunning(ctx, t, namespace, "whole")

	must(t, cluster.Helm(ctx, "--set", "publish[0].shareable=None"))
	must(t, cluster.Eventually(ctx, "devices with shares stay shareable", 90*time.Second, func(ctx context.Context) (bool, string) {
		gpus, err := cluster.Devices(ctx, "gpu")
		shared := 0
		for _, d := range gpus {
			if ptr.Deref(d.AllowMultipleAllocations, false) {
				shared++
			}
		}
		return err == nil && shared > 0 && shared < len(gpus), fmt.Sprintf("%d GPUs are shareable, %v", shared, err)
	}))
}

// TestAuto_ClaimsWithCapacity_GetASelector has claims of all forms, and those that the policy must leave as they are.
func TestAuto_ClaimsWithCapacity_GetASelector(t *testing.T) {
	ctx := testContext(t)
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	selectors := func(all []resourceapi.DeviceSelector) (out []string) {
		for _, s := range all {
			out = append(out, strings.ReplaceAll(s.CEL.Expression, `device.driver != "gpu.nvidia.com" || !("maxShares" in device.attributes["gpu.nvidia.com"])`, "+"))
		}
		return out
	}
	created := func(requests ...resourceapi.DeviceRequest) string {
		c, err := cluster.Client.ResourceV1().ResourceClaims("default").Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
		}, dryRun)
		if err != nil {
			return err.Error()
		}
		var out []any
		for _, r := range c.Spec.Devices.Requests {
			if r.Exactly != nil {
				out = append(out, selectors(r.Exactly.Selectors))
			}
			for _, s := range r.FirstAvailable {
				out = append(out, selectors(s.Selectors))
			}
		}
		return fmt.Sprint(out...)
	}
	must(t, cluster.Eventually(ctx, "the policy", 60*time.Second, func(context.Context) (bool, string) {
		got := created(part(request("a", env.Driver), "memory"))
		return got == "[+]", got
	}))
	either := func(parts ...resourceapi.DeviceRequest) (out resourceapi.DeviceRequest) {
		out.Name = "either"
		for _, p := range parts {
			out.FirstAvailable = append(out.FirstAvailable, resourceapi.DeviceSubRequest{
				Name: p.Name, DeviceClassName: p.Exactly.DeviceClassName, Selectors: p.Exactly.Selectors, Capacity: p.Exactly.Capacity,
			})
		}
		return out
	}
	whole := request("whole", env.Driver)
	var most, others []resourceapi.DeviceRequest
	for i := range resourceapi.DeviceRequestsMaxSize {
		most = append(most, part(request(fmt.Sprint("r", i), env.Driver), "memory"))
	}
	for i := range resourceapi.FirstAvailableDeviceRequestMaxSize {
		others = append(others, part(request(fmt.Sprint("s", i), env.Driver), "memory"))
	}
	full := make([]string, resourceapi.DeviceSelectorsMaxSize)
	for i := range full {
		full[i] = "true"
	}
	for name, c := range map[string]struct {
		requests []resourceapi.DeviceRequest
		want     string
	}{
		"a whole GPU":              {[]resourceapi.DeviceRequest{whole}, "[]"},
		"memory":                   {[]resourceapi.DeviceRequest{part(request("a", env.Driver), "memory")}, "[+]"},
		"with the driver's domain": {[]resourceapi.DeviceRequest{part(request("a", env.Driver), "gpu.nvidia.com/memory")}, "[+]"},
		"of a partition":           {[]resourceapi.DeviceRequest{part(request("a", "mig.nvidia.com"), "compute")}, "[+]"},
		"behind a selector":        {[]resourceapi.DeviceRequest{part(request("a", env.Driver), "memory", "true")}, "[true +]"},
		"of another driver":        {[]resourceapi.DeviceRequest{part(request("a", "nic.example.com"), "bandwidth")}, "[]"},
		"of another domain":        {[]resourceapi.DeviceRequest{part(request("a", "nic.example.com"), "nic.example.com/memory")}, "[]"},
		"beside a whole GPU":       {[]resourceapi.DeviceRequest{whole, part(request("a", env.Driver), "memory")}, "[] [+]"},
		"an alternative":           {[]resourceapi.DeviceRequest{either(whole, part(request("a", env.Driver), "memory"), part(request("b", env.Driver), "memory", "true"))}, "[] [+] [true +]"},
		"the most requests":        {most, strings.TrimSpace(strings.Repeat("[+] ", len(most)))},
		"the most alternatives":    {[]resourceapi.DeviceRequest{either(others...)}, strings.TrimSpace(strings.Repeat("[+] ", len(others)))},
		"the most selectors":       {[]resourceapi.DeviceRequest{part(request("a", env.Driver), "memory", full...)}, "[" + strings.Join(full, " ") + "]"},
		"twice":                    {[]resourceapi.DeviceRequest{part(request("a", env.Driver), "memory", `!("maxShares" in device.attributes["gpu.nvidia.com"])`)}, `[!("maxShares" in device.attributes["gpu.nvidia.com"])]`},
	} {
		if got := created(c.requests...); got != c.want {
			t.Errorf("%s: selectors %s, want %s", name, got, c.want)
		}
	}
}

// TestReplicas_Renamed_PodsUseTheNames has pods as written for a device plugin that renames the shares. The attribute renameByDefault
// fills whole GPUs of a large board: the API server refuses devices with more than 32 attributes and capacities.
func TestReplicas_Renamed_PodsUseTheNames(t *testing.T) {
	ctx := testContext(t, "--set-json", `sharing.config={"version":"v1","sharing":{"timeSlicing":{"renameByDefault":true,`+
		`"resources":[{"name":"nvidia.com/gpu","replicas":4},{"name":"nvidia.com/mig-1g.10gb","replicas":2}]}}}`)
	namespace := createNamespace(ctx, t, nil)
	for name, want := range map[string]int64{"nvidia.com/gpu.shared": 20389 << 20, "nvidia.com/mig-1g.10gb.shared": 4928 << 20} {
		pod := strings.TrimPrefix(name, "nvidia.com/")
		createPod(ctx, t, namespace, pod, "", func(spec *corev1.PodSpec) {
			spec.ResourceClaims, spec.Containers[0].Resources.Claims = nil, nil
			spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName(name): resource.MustParse("1")}
		})
		p := waitRunning(ctx, t, namespace, pod)
		checkPod(ctx, t, p)
		claims, err := cluster.Claims(ctx, p)
		must(t, err)
		for _, r := range env.Results(claims[0]) {
			if bytes, ok := env.Share(r); !ok || bytes != want {
				t.Errorf("the pod for %s has %d bytes of %s, want a share of %d", name, bytes, r.Device, want)
			}
		}
	}
	gpus, err := cluster.Devices(ctx, "gpu")
	must(t, err)
	for _, d := range gpus {
		if !ptr.Deref(d.Attributes["renameByDefault"].BoolValue, false) {
			t.Errorf("%s has no attribute renameByDefault", d.Name)
		}
	}
}
