// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/gpu"
)

// meshed has four GPUs of which the outer two are linked, and the inner two.
func meshed() Node {
	n := Node{Driver: driver, Pool: "n/gpu", Policy: noSettings, Snapshot: gpu.Snapshot{Driver: gpu.Driver{Version: "580.126.09"}}}
	at := func(i int) string { return []string{"0000:10:00.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"}[i] }
	for i := range 4 {
		n.Snapshot.GPUs = append(n.Snapshot.GPUs, gpu.GPU{PCIAddress: at(i), UUID: "GPU-" + string('a'+rune(i)), Minor: 7 - i, MemoryBytes: 80 << 30,
			ComputeCapability: gpu.Version{Major: 8}, MPSCapable: true,
			Interconnect: gpu.Interconnect{Links: []gpu.Link{{Peer: gpu.PeerGPU, PeerAddress: at(3 - i)}}}})
	}
	return n
}

const (
	outer, inner = "nvlink-2-0000-10-00-0", "nvlink-2-0000-11-00-0"
	told         = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","topology":{"cudaVisibleDevices":true,"ncclTopology":true}}`
)

func request(name string) func(*resourceapi.DeviceRequestAllocationResult) {
	return func(r *resourceapi.DeviceRequestAllocationResult) { r.Request = name }
}

func TestMake_Group_IsItsGPUsInLinkOrder(t *testing.T) {
	p, err := Make(claim(nil, result(inner), result(outer, request("other"))), meshed())
	if err != nil {
		t.Fatal(err)
	}
	one := func(request, name, address, uuid string, minor int) Device {
		return Device{Request: request, Pool: "n/gpu", Name: name, Kind: gpu.KindGroup, PCIAddress: address, UUID: uuid, Minor: minor}
	}
	want := []Device{
		one("gpu", inner, "0000:11:00.0", "GPU-b", 6), one("gpu", inner, "0000:12:00.0", "GPU-c", 5),
		one("other", outer, "0000:10:00.0", "GPU-a", 7), one("other", outer, "0000:13:00.0", "GPU-d", 4),
	}
	if diff := cmp.Diff(want, p.Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	var first []bool
	for i := range p.Devices {
		first = append(first, !p.Continues(i))
	}
	if diff := cmp.Diff([]bool{true, false, true, false}, first); diff != "" {
		t.Errorf("where devices begin:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"0000:10:00.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"}, p.HeldGPUs()); diff != "" {
		t.Error(diff)
	}
}

func TestMake_Topology_NamesTheRequestsGPUs(t *testing.T) {
	claimed := resourceapi.AllocationConfigSourceClaim
	for name, c := range map[string]struct {
		claim *resourceapi.ResourceClaim
		// at is the device that says it, visible what it says.
		at      int
		visible string
		says    []string
		silent  []string
	}{
		"a group": {claim([]resourceapi.DeviceAllocationConfiguration{config(claimed, told)}, result(inner)), 0, "GPU-b,GPU-c",
			[]string{`busid="0000:11:00.0"`, `target="0000:12:00.0"`, `busid="0000:12:00.0"`}, []string{"0000:10", "0000:13"}},
		"four GPUs": {claim([]resourceapi.DeviceAllocationConfiguration{config(claimed, told)},
			result("gpu-0000-10-00-0"), result("gpu-0000-11-00-0"), result("gpu-0000-12-00-0"), result("gpu-0000-13-00-0")), 0, "GPU-a,GPU-d,GPU-b,GPU-c",
			[]string{`target="0000:13:00.0"`, `target="0000:12:00.0"`}, nil},
		"one request of two": {claim([]resourceapi.DeviceAllocationConfiguration{config(claimed, told, "other")}, result("gpu-0000-12-00-0"), result(outer, request("other"))), 1,
			"GPU-a,GPU-d", []string{`busid="0000:10:00.0"`}, []string{"0000:12"}},
		"by the class, one of both": {claim([]resourceapi.DeviceAllocationConfiguration{config(resourceapi.AllocationConfigSourceClass,
			`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","topology":{"cudaVisibleDevices":true}}`)}, result(outer)), 0, "GPU-a,GPU-d", nil, []string{"busid"}},
	} {
		p, err := Make(c.claim, meshed())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i, d := range p.Devices {
			if i != c.at && d.TopologyEnv != (TopologyEnv{}) {
				t.Errorf("%s: device %d says %+v too", name, i, d.TopologyEnv)
			}
		}
		got := p.Devices[c.at].TopologyEnv
		if got.VisibleDevices != c.visible {
			t.Errorf("%s: CUDA_VISIBLE_DEVICES is %q, want %q", name, got.VisibleDevices, c.visible)
		}
		for _, text := range c.says {
			if !strings.Contains(got.NCCLTopology, text) {
				t.Errorf("%s: the file for NCCL lacks %s:\n%s", name, text, got.NCCLTopology)
			}
		}
		for _, text := range c.silent {
			if strings.Contains(got.NCCLTopology, text) {
				t.Errorf("%s: the file for NCCL has %s:\n%s", name, text, got.NCCLTopology)
			}
		}
	}
}

func TestMake_InvalidGroup_ReturnsError(t *testing.T) {
	claimed := resourceapi.AllocationConfigSourceClaim
	configs := func(parameters ...string) (out []resourceapi.DeviceAllocationConfiguration) {
		for _, p := range parameters {
			out = append(out, config(claimed, p))
		}
		return out
	}
	for name, c := range map[string]struct {
		claim  *resourceapi.ResourceClaim
		kind   claimerror.Kind
		reason claimerror.Reason
		texts  []string
	}{
		"a size that is none":         {claim(nil, result("nvlink-4-0000-10-00-0")), claimerror.Transient, claimerror.DeviceNotReady, []string{"4 GPUs from 0000:10:00.0", "nvidia-smi nvlink"}},
		"a first member that is none": {claim(nil, result("nvlink-2-0000-12-00-0")), claimerror.Transient, claimerror.DeviceNotReady, []string{"2 GPUs from 0000:12:00.0"}},
		"a GPU that is gone":          {claim(nil, result("nvlink-2-0000-1f-00-0")), claimerror.Transient, claimerror.DeviceLost, []string{"0000:1f:00.0"}},
		"a member beside it":          {claim(nil, result(outer), result("gpu-0000-13-00-0")), claimerror.Permanent, claimerror.InvalidAllocation, []string{"gpu-0000-13-00-0", outer}},
		"sharing": {claim(configs(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`), result(outer)),
			claimerror.Permanent, claimerror.InvalidParameters, []string{"sharing", "one claim gets all of it", "the claim"}},
		"a MIG device's parameters": {claim([]resourceapi.DeviceAllocationConfiguration{config(claimed, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig"}`, "gpu")}, result(outer)),
			claimerror.Permanent, claimerror.InvalidParameters, []string{"MigDeviceConfig", "nvlink-group"}},
		"topology in two requests": {claim(configs(told), result(outer), result(inner, request("other"))),
			claimerror.Permanent, claimerror.InvalidParameters, []string{"topology", `"gpu" asks for it too`, "one request"}},
		"topology of a share": {claim(configs(told), result("gpu-0000-10-00-0", share10)), claimerror.Permanent, claimerror.InvalidParameters, []string{"topology", "whole GPUs"}},
	} {
		_, err := Make(c.claim, meshed())
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		if claimerror.KindOf(err) != c.kind || claimerror.ReasonOf(err) != c.reason {
			t.Errorf("%s: %s %s, want %s %s: %v", name, claimerror.KindOf(err), claimerror.ReasonOf(err), c.kind, c.reason, err)
		}
		for _, text := range c.texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %q does not say %q", name, err, text)
			}
		}
	}
}

func TestMake_PreparedGroup_KeepsItsGPUs(t *testing.T) {
	n := meshed()
	c := claim(nil, result(outer))
	p, err := Make(c, n)
	if err != nil {
		t.Fatal(err)
	}
	n.Snapshot.GPUs[0].Links = nil
	n.Prepared = p
	again, err := Make(c, n)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, again); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Of another allocation it says nothing.
	n.Prepared.Allocation.Results[0].ShareID = "other"
	if _, err := Make(c, n); err == nil {
		t.Error("a group that is none is planned")
	}
}

func share10(r *resourceapi.DeviceRequestAllocationResult) {
	id := types.UID("s-1")
	r.ShareID = &id
	r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")}
}
