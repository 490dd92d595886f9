// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cdi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// decode reads each object of a file by Kubernetes' own reader, with its validation.
func decode(t *testing.T, data []byte) (versions []string, first metadata.DeviceMetadata) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	for decoder.More() {
		var object metadata.DeviceMetadata
		var gvk schema.GroupVersionKind
		var invalid error
		err := devicemetadata.DecodeMetadataFromStream(decoder, &object,
			devicemetadata.DecodeMetadataStoreGVKResult(&gvk), devicemetadata.DecodeMetadataWithValidationResult(&invalid))
		if err != nil || invalid != nil {
			t.Fatalf("decode: %v, %v\n%s", err, invalid, data)
		}
		if len(versions) == 0 {
			first = object
		} else if diff := cmp.Diff(first, object); diff != "" {
			t.Errorf("%s differs (-first +this):\n%s", gvk.Version, diff)
		}
		versions = append(versions, gvk.GroupVersion().String()+" "+gvk.Kind)
	}
	return versions, first
}

// lines writes the devices of a request as text.
func lines(devices []metadata.Device) (out []string) {
	for _, d := range devices {
		line := d.Driver + " " + d.Pool + " " + d.Name
		for _, name := range []resourceapi.QualifiedName{
			"type", "productName", "uuid", "parentUUID", "profile", "resource.kubernetes.io/pciBusID", "groupIndex",
			"shareMemoryMiB", "shareUsableMemoryMiB", "shareComputePercent", "sharingStrategy",
		} {
			a, ok := d.Attributes[name]
			switch {
			case !ok:
				continue
			case a.StringValue != nil:
				line += fmt.Sprintf(" %s=%s", name, *a.StringValue)
			case a.IntValue != nil:
				line += fmt.Sprintf(" %s=%d", name, *a.IntValue)
			}
			delete(d.Attributes, name)
		}
		out = append(out, line+strings.Repeat(" and more", len(d.Attributes)))
	}
	return out
}

func manyKinds() plan.Plan {
	share := plan.Device{
		Request: "share", Pool: "n/gpu", Name: "gpu-0000-14-00-0", ShareID: "s", Kind: gpu.KindGPU, PCIAddress: "0000:14:00.0",
		UUID: "GPU-4", ProductName: "NVIDIA L4",
		Share:   plan.Share{MemoryBytes: 10 << 30, DeviceMemoryBytes: 24 << 30, UsableBytes: 9 << 30, Compute: 30},
		Sharing: plan.Sharing{Strategy: v1beta1.StrategyMPS},
	}
	group := plan.Device{Request: "pair", Pool: "n/gpu", Name: "nvlink-2-0000-10-00-0", Kind: gpu.KindGroup, PCIAddress: "0000:10:00.0", UUID: "GPU-0"}
	second := group
	second.PCIAddress, second.UUID = "0000:11:00.0", "GPU-1"
	return plan.Plan{
		Claim:    plan.Claim{Namespace: "ns", Name: "c", UID: "u-1"},
		Metadata: plan.Metadata{Files: true},
		Devices: []plan.Device{
			{Request: "gpu/big", Pool: "n/gpu", Name: "gpu-0000-1b-00-0", Kind: gpu.KindGPU, PCIAddress: "0000:1b:00.0", UUID: "GPU-9",
				ProductName: strings.Repeat("é", 40)},
			group, second, share,
			{Request: "cut", Pool: "n/gpu", Name: "gpu-0000-15-00-0-mig-1g-10gb-4", Kind: gpu.KindMIG, PCIAddress: "0000:15:00.0", UUID: "GPU-5",
				Partition: plan.Partition{Profile: "1g.10gb", Start: 4, UUID: "MIG-5"}},
			{Request: "gpu/big", Pool: "n/gpu", Name: "gpu-0000-1c-00-0", Kind: gpu.KindGPU, PCIAddress: "0000:1c:00.0", UUID: "GPU-10"},
			{Request: "watch", Pool: "n/monitor", Name: "monitor-0000-10-00-0", Kind: gpu.KindMonitor, Admin: true, PCIAddress: "0000:10:00.0", UUID: "GPU-0"},
		},
	}
}

func TestMetadataFiles_EachKind_AreReadByKubernetes(t *testing.T) {
	files, err := cdi.MetadataFiles("gpu.nvidia.com", manyKinds())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"gpu": {
			"gpu.nvidia.com n/gpu gpu-0000-1b-00-0 type=gpu productName=" + strings.Repeat("é", 32) + " uuid=GPU-9 resource.kubernetes.io/pciBusID=0000:1b:00.0",
			"gpu.nvidia.com n/gpu gpu-0000-1c-00-0 type=gpu uuid=GPU-10 resource.kubernetes.io/pciBusID=0000:1c:00.0",
		},
		"pair": {
			"gpu.nvidia.com n/gpu nvlink-2-0000-10-00-0 type=nvlink-group uuid=GPU-0 resource.kubernetes.io/pciBusID=0000:10:00.0 groupIndex=0",
			"gpu.nvidia.com n/gpu nvlink-2-0000-10-00-0 type=nvlink-group uuid=GPU-1 resource.kubernetes.io/pciBusID=0000:11:00.0 groupIndex=1",
		},
		"share": {
			"gpu.nvidia.com n/gpu gpu-0000-14-00-0 type=gpu productName=NVIDIA L4 uuid=GPU-4 resource.kubernetes.io/pciBusID=0000:14:00.0" +
				" shareMemoryMiB=10240 shareUsableMemoryMiB=9216 shareComputePercent=30 sharingStrategy=MPS",
		},
		"cut": {
			"gpu.nvidia.com n/gpu gpu-0000-15-00-0-mig-1g-10gb-4 type=mig uuid=MIG-5 parentUUID=GPU-5 profile=1g.10gb resource.kubernetes.io/pciBusID=0000:15:00.0",
		},
		"watch": {"gpu.nvidia.com n/monitor monitor-0000-10-00-0 type=monitor uuid=GPU-0 resource.kubernetes.io/pciBusID=0000:10:00.0"},
	}
	names := map[string]string{"gpu": "gpu/big"}
	got := map[string][]string{}
	for _, f := range files {
		versions, object := decode(t, f.Data)
		if diff := cmp.Diff([]string{"metadata.resource.k8s.io/v1beta1 DeviceMetadata", "metadata.resource.k8s.io/v1alpha1 DeviceMetadata"}, versions); diff != "" {
			t.Errorf("versions (-want +got):\n%s", diff)
		}
		if object.Namespace != "ns" || object.Name != "c" || object.UID != "u-1" || object.Generation != 1 || object.PodClaimName != nil || len(object.Requests) != 1 {
			t.Errorf("object %+v", object)
		}
		name := f.Request
		if full, ok := names[name]; ok {
			name = full
		}
		if object.Requests[0].Name != name {
			t.Errorf("the file of request %s is about %s", f.Request, object.Requests[0].Name)
		}
		got[f.Request] = lines(object.Requests[0].Devices)
		if path := "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c/" + f.Request + "/gpu.nvidia.com-metadata.json"; f.ContainerPath != path {
			t.Errorf("path %s", f.ContainerPath)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

func TestMetadataFiles_ClaimFromTemplate_HasThePodsName(t *testing.T) {
	p := manyKinds()
	p.Metadata.PodClaim, p.Devices = "mine", p.Devices[:1]
	files, err := cdi.MetadataFiles("gpu.nvidia.com", p)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	_, object := decode(t, files[0].Data)
	if object.PodClaimName == nil || *object.PodClaimName != "mine" {
		t.Errorf("podClaimName %v", object.PodClaimName)
	}
	if want := "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/mine/gpu/gpu.nvidia.com-metadata.json"; files[0].ContainerPath != want {
		t.Errorf("path %s", files[0].ContainerPath)
	}
}

func TestMetadataFiles_EachDevice_IsInTheFileOfItsNumber(t *testing.T) {
	p := manyKinds()
	p.Devices = append(p.Devices, p.Devices[0]) // A second device of the first request.
	files, err := cdi.MetadataFiles("gpu.nvidia.com", p)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range p.Devices {
		if n, ok := p.MetadataFile(i); !ok || !files[n].Describes(d) {
			t.Errorf("device %d is in file %d, %v", i, n, ok)
		}
	}
	p.Metadata.Files = false
	if _, ok := p.MetadataFile(0); ok {
		t.Error("a plan without metadata has a file")
	}
}

func TestMetadataFiles_Off_AreNone(t *testing.T) {
	p := manyKinds()
	p.Metadata = plan.Metadata{}
	if files, err := cdi.MetadataFiles("gpu.nvidia.com", p); len(files) > 0 || err != nil {
		t.Error(files, err)
	}
}

// TestSpec_TwoRequestsOfOneDevice_MountsBothFiles has admin access, with which requests can name the same device.
func TestSpec_TwoRequestsOfOneDevice_MountsBothFiles(t *testing.T) {
	p := onePlan()
	p.Devices[0].Admin, p.Metadata.Files = true, true
	p.Devices = append(p.Devices, p.Devices[0])
	p.Devices[1].Request = "other"
	files, err := cdi.MetadataFiles("gpu.nvidia.com", p)
	if err != nil {
		t.Fatal(err)
	}
	e := edits()
	e.Devices = append(e.Devices, e.Devices[0])
	for i, f := range files {
		e.Devices[i] = cdi.MountMetadata(e.Devices[i], "/host/"+f.Request, f)
	}
	spec, err := cdi.Spec(driver, p, "boot-1", e)
	if err != nil {
		t.Fatal(err)
	}
	want := []*specs.Mount{
		{HostPath: "/host/gpu", ContainerPath: files[0].ContainerPath, Options: []string{"ro", "nosuid", "nodev", "bind"}},
		{HostPath: "/host/other", ContainerPath: files[1].ContainerPath, Options: []string{"ro", "nosuid", "nodev", "bind"}},
	}
	if diff := cmp.Diff(want, spec.Devices[0].ContainerEdits.Mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}
