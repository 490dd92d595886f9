// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

const driver = "gpu.nvidia.com"

// noSettings is the Policy of a node without settings.
func noSettings(gpu.GPU, string) sharing.Policy { return sharing.Policy{} }

var node = Node{Driver: driver, Pool: "n/gpu", MonitorPool: "n/monitor", Policy: noSettings, Snapshot: gpu.Snapshot{
	Driver: gpu.Driver{Version: "580.126.09"},
	GPUs: []gpu.GPU{
		{PCIAddress: "0000:1b:00.0", UUID: "GPU-0", Minor: 0}, {PCIAddress: "0000:43:00.0", UUID: "GPU-1", Minor: 5},
	},
	Problems: []gpu.Problem{
		{PCIAddress: "0000:52:00.0", Lost: true, Message: "nvmlDeviceGetUUID: GPU is lost"},
		{PCIAddress: "0000:61:00.0", Message: "nvmlDeviceGetUUID: unknown error"},
	},
}}

func result(device string, change ...func(*resourceapi.DeviceRequestAllocationResult)) resourceapi.DeviceRequestAllocationResult {
	r := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: driver, Pool: "n/gpu", Device: device}
	for _, c := range change {
		c(&r)
	}
	return r
}

func admin(r *resourceapi.DeviceRequestAllocationResult) { yes := true; r.AdminAccess = &yes }

func config(source resourceapi.AllocationConfigSource, parameters string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{
		Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
		}},
	}
}

func claim(configs []resourceapi.DeviceAllocationConfiguration, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: types.UID("u-1")},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: results, Config: configs},
		}},
	}
}

func TestMake_Allocation_NamesItsDevices(t *testing.T) {
	share := types.UID("s-1")
	p, err := Make(claim(nil,
		result("gpu-0000-43-00-0", func(r *resourceapi.DeviceRequestAllocationResult) { r.Request = "best/h100" }),
		result("monitor-0000-1b-00-0", admin, func(r *resourceapi.DeviceRequestAllocationResult) { r.ShareID = &share }),
		result("monitor-0000-43-00-0", admin, func(r *resourceapi.DeviceRequestAllocationResult) { r.Pool = "n/monitor" }),
		result("nic-0", func(r *resourceapi.DeviceRequestAllocationResult) { r.Driver = "nic.example.com" }),
	), node)
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{
		{Request: "best/h100", Pool: "n/gpu", Name: "gpu-0000-43-00-0", Kind: gpu.KindGPU, PCIAddress: "0000:43:00.0", UUID: "GPU-1", Minor: 5},
		{
			Request: "gpu", Pool: "n/gpu", Name: "monitor-0000-1b-00-0", ShareID: "s-1", Kind: gpu.KindMonitor, Admin: true,
			PCIAddress: "0000:1b:00.0", UUID: "GPU-0",
		},
		{
			Request: "gpu", Pool: "n/monitor", Name: "monitor-0000-43-00-0", Kind: gpu.KindMonitor, Admin: true,
			PCIAddress: "0000:43:00.0", UUID: "GPU-1", Minor: 5,
		},
	}
	if diff := cmp.Diff(want, p.Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"0000:43:00.0"}, p.HeldGPUs()); diff != "" {
		t.Error(diff)
	}
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back Plan
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, back); diff != "" {
		t.Errorf("the plan changes on its way through JSON:\n%s", diff)
	}
}

func TestMake_InvalidClaim_ReturnsError(t *testing.T) {
	good := "gpu-0000-1b-00-0"
	typo := `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharring":{}}`
	ofTemplate := claim([]resourceapi.DeviceAllocationConfiguration{config(resourceapi.AllocationConfigSourceClaim, typo)}, result(good))
	ofTemplate.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", Controller: new(true)}}
	unplaced := node
	unplaced.Snapshot.Problems = []gpu.Problem{{Message: "unknown error"}}
	for name, c := range map[string]struct {
		claim  *resourceapi.ResourceClaim
		node   Node
		kind   claimerror.Kind
		reason claimerror.Reason
		texts  []string
	}{
		"not allocated": {
			&resourceapi.ResourceClaim{}, node, claimerror.Permanent, claimerror.InvalidAllocation, []string{"not allocated"},
		},
		"a device of no driver": {
			claim(nil, result("gpu-7")), node, claimerror.Transient, claimerror.UnknownDevice, []string{"gpu-7", "ns/c", "allocates again"},
		},
		"another node's pool": {
			claim(nil, result(good, func(r *resourceapi.DeviceRequestAllocationResult) { r.Pool = "m/gpu" })), node,
			claimerror.Transient, claimerror.UnknownDevice, []string{`"m/gpu"`, `"n/gpu"`},
		},
		"a GPU of the monitors' pool": {
			claim(nil, result(good, func(r *resourceapi.DeviceRequestAllocationResult) { r.Pool = "n/monitor" })), node,
			claimerror.Transient, claimerror.UnknownDevice, []string{`"n/monitor"`},
		},
		"a monitor to be used": {
			claim(nil, result("monitor-0000-1b-00-0")), node, claimerror.Permanent, claimerror.InvalidAllocation, []string{"adminAccess: true"},
		},
		"a lost GPU": {
			claim(nil, result("gpu-0000-52-00-0")), node, claimerror.Transient, claimerror.DeviceLost, []string{"GPU is lost", "Reset"},
		},
		"an unreadable GPU": {
			claim(nil, result("gpu-0000-61-00-0")), node, claimerror.Transient, claimerror.DeviceNotReady, []string{"unknown error", "NVRM"},
		},
		"a GPU that is gone": {
			claim(nil, result("gpu-0000-99-00-0")), node, claimerror.Transient, claimerror.DeviceLost, []string{"no longer lists", "0000:99:00.0", "Reset"},
		},
		"a GPU that may be the unreadable one": {
			claim(nil, result("gpu-0000-99-00-0")), unplaced, claimerror.Transient, claimerror.UnknownDevice, []string{"0000:99:00.0"},
		},
		"no driver": {
			claim(nil, result(good)), Node{Driver: driver, Pool: "n/gpu", Policy: noSettings}, claimerror.Transient, claimerror.DriverNotReady, []string{"not loaded"},
		},
		"a typo in the claim": {
			claim([]resourceapi.DeviceAllocationConfiguration{config(resourceapi.AllocationConfigSourceClaim, typo)}, result(good)), node,
			claimerror.Permanent, claimerror.InvalidParameters, []string{"sharring", `"gpu"`, "Correct the claim, then create the claim anew"},
		},
		"a typo in the claim's template": {
			ofTemplate, node, claimerror.Permanent, claimerror.InvalidParameters, []string{"sharring", "Correct the template, then delete the pod"},
		},
		"a typo in the class": {
			claim([]resourceapi.DeviceAllocationConfiguration{config(resourceapi.AllocationConfigSourceClass, typo, "gpu")}, result(good)), node,
			claimerror.Permanent, claimerror.InvalidParameters, []string{"sharring", "the DeviceClass"},
		},
		"a kind that is not served": {
			claim([]resourceapi.DeviceAllocationConfiguration{config(resourceapi.AllocationConfigSourceClaim,
				`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"VfioDeviceConfig"}`)}, result(good)), node,
			claimerror.Permanent, claimerror.InvalidParameters, []string{"VfioDeviceConfig", "not supported by this driver"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Make(c.claim, c.node)
			if claimerror.KindOf(err) != c.kind || claimerror.ReasonOf(err) != c.reason || err == nil {
				t.Fatalf("kind %s, reason %s: %v", claimerror.KindOf(err), claimerror.ReasonOf(err), err)
			}
			for _, text := range c.texts {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q is not in: %v", text, err)
				}
			}
		})
	}
}

func TestMake_OtherDriversParameters_AreIgnored(t *testing.T) {
	others := config(resourceapi.AllocationConfigSourceClaim, "noise")
	others.Opaque.Driver = "nic.example.com"
	for name, c := range map[string]resourceapi.DeviceAllocationConfiguration{
		"another driver's":  others,
		"another request's": config(resourceapi.AllocationConfigSourceClaim, "noise", "other"),
	} {
		if _, err := Make(claim([]resourceapi.DeviceAllocationConfiguration{c}, result("gpu-0000-1b-00-0")), node); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
