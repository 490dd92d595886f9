// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// MetadataFile describes the devices of one request to the containers that have them (KEP-5304).
type MetadataFile struct {
	// Request is the request's name, without the name of an alternative.
	Request string
	// ContainerPath is the file's path in containers.
	ContainerPath string
	// Data is the same object once for each version of the API, newest first.
	Data []byte
}

// Describes reports whether a device belongs to the file's request.
func (f MetadataFile) Describes(d plan.Device) bool { return f.Request == d.RequestName() }

// metadataVersions are the versions of the metadata API, newest first. Their JSON differs by apiVersion only.
var metadataVersions = []string{v1beta1.SchemeGroupVersion.String(), v1alpha1.SchemeGroupVersion.String()}

// MetadataFiles returns a file for each request of a plan, or none if the plan has no metadata. They are in the order
// of the plan's devices: see plan.Plan.MetadataFile.
func MetadataFiles(driver string, p plan.Plan) ([]MetadataFile, error) {
	if !p.Metadata.Files {
		return nil, nil
	}
	var out []MetadataFile
	for i, d := range p.Devices {
		if number, _ := p.MetadataFile(i); number < len(out) {
			continue
		}
		f := MetadataFile{Request: d.RequestName()}
		object := v1beta1.DeviceMetadata{
			TypeMeta: metav1.TypeMeta{Kind: "DeviceMetadata"},
			ObjectMeta: metav1.ObjectMeta{Name: p.Claim.Name, Namespace: p.Claim.Namespace, UID: types.UID(p.Claim.UID),
				Generation: 1},
			Requests: []v1beta1.DeviceMetadataRequest{{Name: d.Request, Devices: describe(driver, p, f)}},
		}
		if p.Metadata.PodClaim == "" {
			f.ContainerPath = metadata.ResourceClaimFilePath(driver, p.Claim.Name, f.Request)
		} else {
			object.PodClaimName = &p.Metadata.PodClaim
			f.ContainerPath = metadata.ResourceClaimTemplateFilePath(driver, p.Metadata.PodClaim, f.Request)
		}
		var b bytes.Buffer
		for _, version := range metadataVersions {
			object.APIVersion = version
			if err := json.NewEncoder(&b).Encode(object); err != nil {
				return nil, fmt.Errorf("encode the metadata of request %s: %w", f.Request, err)
			}
		}
		f.Data = b.Bytes()
		out = append(out, f)
	}
	return out, nil
}

// describe returns the devices of a file's request. A group has an entry for each of its GPUs, in link order, because
// programs look for one PCI bus ID in an entry.
func describe(driver string, p plan.Plan, f MetadataFile) (out []v1beta1.Device) {
	index := 0
	for i, d := range p.Devices {
		if !p.Continues(i) {
			index = 0
		}
		if f.Describes(d) {
			out = append(out,
				v1beta1.Device{Driver: driver, Pool: d.Pool, Name: d.Name, Attributes: attributes(d, index)})
		}
		index++
	}
	return out
}

// attributes have the names of the published attributes where there is one. index is the GPU's position in its group.
func attributes(d plan.Device, index int) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	out := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	text := func(name resourceapi.QualifiedName, value string) {
		value = strings.ToValidUTF8(value, "?")
		value = strings.ToValidUTF8(value[:min(len(value), resourceapi.DeviceAttributeMaxValueLength)], "")
		if value != "" {
			out[name] = resourceapi.DeviceAttribute{StringValue: &value}
		}
	}
	number := func(name resourceapi.QualifiedName, value int64) {
		out[name] = resourceapi.DeviceAttribute{IntValue: &value}
	}
	text("type", string(d.Kind))
	text("productName", d.ProductName)
	text("resource.kubernetes.io/pciBusID", d.PCIAddress)
	switch d.Kind {
	case gpu.KindMIG:
		text("uuid", d.Partition.UUID)
		text("parentUUID", d.UUID)
		text("profile", d.Partition.Profile)
	case gpu.KindGroup:
		text("uuid", d.UUID)
		number("groupIndex", int64(index))
	default:
		text("uuid", d.UUID)
	}
	if d.Partial() && !d.Admin {
		number("shareMemoryMiB", int64(d.Share.MemoryBytes>>20))
		number("shareUsableMemoryMiB", int64(d.Share.UsableBytes>>20))
		if d.Share.Compute > 0 {
			number("shareComputePercent", int64(d.Share.Compute))
		}
	}
	text("sharingStrategy", string(d.Sharing.Strategy))
	return out
}

// MountMetadata adds the mount of a file that has the path host on the node.
func MountMetadata(edits specs.ContainerEdits, host string, f MetadataFile) specs.ContainerEdits {
	edits.Mounts = append(slices.Clip(edits.Mounts), bind(host, f.ContainerPath, "ro"))
	return edits
}
