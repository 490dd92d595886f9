//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/test/e2e/env"
)

// checkMetadata asserts that a container has one metadata file for each request of its claims, and no others.
// Kubernetes' reader must find the request's devices in it, with the identities that the simulated kernel has.
func checkMetadata(ctx context.Context, t *testing.T, p corev1.Pod, c corev1.Container, claims []resourceapi.ResourceClaim, view env.View) {
	t.Helper()
	want := map[string][]string{}
	for _, u := range usesOf(p, c, claims) {
		for _, r := range env.Results(u.claim) {
			if !u.has(r) {
				continue
			}
			base, _, _ := strings.Cut(r.Request, "/")
			file := filepath.Join("resourceclaims", u.claim.Name, base, env.Driver+metadata.MetadataFileSuffix)
			if name := u.claim.Annotations[resourceapi.PodResourceClaimAnnotation]; name != "" {
				file = filepath.Join("resourceclaimtemplates", name, base, env.Driver+metadata.MetadataFileSuffix)
			}
			want[file] = append(want[file], describedAs(ctx, t, r)...)
		}
	}
	got := map[string][]string{}
	for file, content := range view.Metadata {
		got[file] = describedIn(t, content)
	}
	for _, files := range []map[string][]string{want, got} {
		for file, lines := range files {
			slices.Sort(lines)
			files[file] = slices.Compact(lines) // A container can name a claim and one of its requests.
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s/%s: metadata files (-want +seen):\n%s", p.Name, c.Name, diff)
	}
}

// describedAs writes a request's device as describedIn does, with one line for each GPU of a group.
func describedAs(ctx context.Context, t *testing.T, r resourceapi.DeviceRequestAllocationResult) (out []string) {
	t.Helper()
	named, err := gpu.ParseName(r.Device)
	must(t, err)
	for i, member := range expandGroups(t, []string{r.Device}) {
		d, err := gpu.ParseName(member)
		must(t, err)
		_, uuid := minorAndUUID(t, member)
		line := fmt.Sprintf("%s: %s type=%s uuid=%s pciBusID=%s", r.Request, r.Device, named.Kind, uuid, d.PCIAddress)
		if named.Kind == gpu.KindGroup {
			line += fmt.Sprintf(" groupIndex=%d", i)
		}
		if named.Kind == gpu.KindMIG {
			_, partition := partitionNodes(t, member)
			line = fmt.Sprintf("%s: %s type=mig uuid=%s pciBusID=%s parentUUID=%s profile=%s",
				r.Request, r.Device, partition[0], d.PCIAddress, uuid, named.Profile)
		}
		if bytes, shared := env.Share(r); shared && named.Kind != gpu.KindMonitor && bytes < memoryBytes(ctx, t, r.Device) {
			line += fmt.Sprintf(" shareMemoryMiB=%d", bytes>>20)
		}
		out = append(out, line)
	}
	return out
}

// describedIn writes the devices in a file, by Kubernetes' own reader.
func describedIn(t *testing.T, content string) (out []string) {
	t.Helper()
	var object metadata.DeviceMetadata
	var invalid error
	err := devicemetadata.DecodeMetadataFromStream(json.NewDecoder(strings.NewReader(content)), &object,
		devicemetadata.DecodeMetadataWithValidationResult(&invalid))
	if err != nil || invalid != nil {
		t.Fatalf("metadata file: %v, %v\n%s", err, invalid, content)
	}
	for _, request := range object.Requests {
		for _, d := range request.Devices {
			if d.Attributes["productName"].StringValue == nil {
				t.Errorf("%s has no model:\n%s", d.Name, content)
			}
			line := fmt.Sprintf("%s: %s", request.Name, d.Name)
			for _, name := range []string{
				"type", "uuid", "resource.kubernetes.io/pciBusID", "parentUUID", "profile", "groupIndex", "shareMemoryMiB",
			} {
				a, ok := d.Attributes[resourceapi.QualifiedName(name)]
				name = name[strings.LastIndex(name, "/")+1:]
				switch {
				case !ok:
				case a.StringValue != nil:
					line += fmt.Sprintf(" %s=%s", name, *a.StringValue)
				case a.IntValue != nil:
					line += fmt.Sprintf(" %s=%d", name, *a.IntValue)
				}
			}
			out = append(out, line)
		}
	}
	return out
}

// TestMetadata_EachKindOfDevice_DescribedInContainer has a claim of a whole GPU, a partition, a share and a group of two.
// One container has all of it, one has the partition only, and one has nothing.
func TestMetadata_EachKindOfDevice_DescribedInContainer(t *testing.T) {
	ctx := testContext(t)
	ns := createNamespace(ctx, t, nil)
	request := func(name, class string, change func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
		r := resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}
		if change != nil {
			change(r.Exactly)
		}
		return r
	}
	_, err := cluster.Client.ResourceV1().ResourceClaims(ns).Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			request("whole", env.Driver, nil),
			request("partition", "mig.nvidia.com", func(r *resourceapi.ExactDeviceRequest) {
				r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`}}}
			}),
			request("share", env.Driver, func(r *resourceapi.ExactDeviceRequest) {
				r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")}}
			}),
			request("pair", "nvlink-2.gpu.nvidia.com", nil),
		}}},
	}, metav1.CreateOptions{})
	must(t, err)
	createPod(ctx, t, ns, "p", "all", func(spec *corev1.PodSpec) {
		for _, name := range []string{"one", "none"} {
			c := *spec.Containers[0].DeepCopy()
			c.Name, c.Resources.Claims = name, nil
			if name == "one" {
				c.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu", Request: "partition"}}
			}
			spec.Containers = append(spec.Containers, c)
		}
	})
	pods, err := cluster.WaitPods(ctx, ns, 1)
	must(t, err)
	checkPod(ctx, t, pods[0])
	claims, err := cluster.Claims(ctx, pods[0])
	must(t, err)
	for container, files := range map[string]int{pods[0].Spec.Containers[0].Name: 4, "one": 1, "none": 0} {
		view, err := cluster.Inspect(ctx, ns, "p", container)
		must(t, err)
		if len(view.Metadata) != files {
			t.Errorf("container %s has %d files, want %d: %v", container, len(view.Metadata), files, view.Metadata)
		}
	}
	must(t, cluster.Client.CoreV1().Pods(ns).Delete(ctx, "p", metav1.DeleteOptions{}))
	must(t, cluster.Eventually(ctx, "files of the claim gone", 90*time.Second, func(ctx context.Context) (bool, string) {
		list, err := cluster.OnNode(ctx, "find", "/var/run/cdi", "-name", "*"+string(claims[0].UID)+"*")
		return err == nil && strings.TrimSpace(list) == "", fmt.Sprint(list, err)
	}))
}
