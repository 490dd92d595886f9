// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// allocated is a claim with every field that a plan depends on.
func allocated() *resourceapi.ResourceClaim {
	share := result("gpu-0000-1b-00-0", func(r *resourceapi.DeviceRequestAllocationResult) {
		r.ShareID = new(types.UID("share"))
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
			memoryCapacity: resource.MustParse("10Gi"), computeCapacity: resource.MustParse("40"), "other": resource.MustParse("1"),
		}
	})
	watched := result("gpu-0000-43-00-0", admin, func(r *resourceapi.DeviceRequestAllocationResult) { r.Request = "watch" })
	return claim([]resourceapi.DeviceAllocationConfiguration{
		config(resourceapi.AllocationConfigSourceClass, `{"kind":"GpuConfig","apiVersion":"resource.nvidia.com/v1beta1"}`),
		config(resourceapi.AllocationConfigSourceClaim, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig",
			"sharing": {"strategy":"MPS", "mpsConfig":{"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"9Gi"}}}`, "gpu", "watch"),
	}, share, watched)
}

func sharedNode() Node {
	n := node
	n.Snapshot.GPUs = slices.Clone(n.Snapshot.GPUs)
	for i := range n.Snapshot.GPUs {
		n.Snapshot.GPUs[i].MemoryBytes, n.Snapshot.GPUs[i].MPSCapable = 80<<30, true
	}
	return n
}

// recorded returns the plan of a claim as a record keeps it.
func recorded(t *testing.T, c *resourceapi.ResourceClaim) Plan {
	t.Helper()
	p, err := Make(c, sharedNode())
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var out Plan
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// asJSON returns a claim as a client of JSON reads it, after changes of the text.
func asJSON(t *testing.T, c *resourceapi.ResourceClaim, changes ...string) *resourceapi.ResourceClaim {
	t.Helper()
	data, err := json.Marshal(c)
	must(t, err)
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(string(data), changes[i]) {
			t.Fatalf("%s is not in %s", changes[i], data)
		}
	}
	out := &resourceapi.ResourceClaim{}
	must(t, json.Unmarshal([]byte(strings.NewReplacer(changes...).Replace(string(data))), out))
	return out
}

// TestAllocation_OtherEncodings_AreTheSame reads one claim in every form that an API server or a newer Kubernetes sends.
func TestAllocation_OtherEncodings_AreTheSame(t *testing.T) {
	forms := map[string]func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim{
		"protobuf": func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
			data, err := c.Marshal()
			must(t, err)
			out := &resourceapi.ResourceClaim{}
			must(t, out.Unmarshal(append(data, 0xf8, 0x3e, 1))) // The last bytes are field 1007 of a newer Kubernetes.
			return out
		},
		"JSON": func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim { return asJSON(t, c) },
		"JSON of a newer Kubernetes": func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
			return asJSON(t, c, `"results":[{`, `"later":1,"results":[{"later":{"x":[1]},`, `"source":"FromClaim"`, `"source":"FromClaim","later":true`,
				`"allocation":{`, `"allocation":{"later":"x",`, `"opaque":{`, `"opaque":{"later":1,`)
		},
		"keys of parameters in another order": func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
			return asJSON(t, c, `"parameters":{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig",`, `"parameters":{`,
				`"defaultPinnedDeviceMemoryLimit":"9Gi"}}}`, `"defaultPinnedDeviceMemoryLimit":"9Gi"}},"kind":"GpuConfig","apiVersion":"resource.nvidia.com/v1beta1"}`)
		},
		"escaped parameters": func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
			return asJSON(t, c, `"parameters":{"apiVersion":"resource`, `"parameters":{"apiVersion":"\u0072esource`)
		},
		"defaults set": func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
			no := false
			d := &c.Status.Allocation.Devices
			d.Results[0].AdminAccess = &no
			d.Results[1].ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
			d.Config[0].Requests = []string{}
			return c
		},
		"fields that no plan depends on": func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
			c.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			c.Status.Allocation.NodeSelector = nil
			d := &c.Status.Allocation.Devices
			d.Results[0].Tolerations = []resourceapi.DeviceToleration{{Key: "k"}}
			d.Results[0].BindingConditions = []string{"x"}
			d.Results[0].ConsumedCapacity["other"] = resource.MustParse("2")
			return c
		},
		"another driver's results and parameters": func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
			d, other := &c.Status.Allocation.Devices, config(resourceapi.AllocationConfigSourceClaim, `{}`)
			other.Opaque.Driver = "nic.example.com"
			d.Config = append(d.Config, other)
			d.Results = append(d.Results, resourceapi.DeviceRequestAllocationResult{Request: "nic", Driver: "nic.example.com"})
			return c
		},
		"lists in another order": func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
			slices.Reverse(c.Status.Allocation.Devices.Results)
			slices.Reverse(c.Status.Allocation.Devices.Config[1].Requests)
			return c
		},
		"amounts written otherwise": func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
			c.Status.Allocation.Devices.Results[0].ConsumedCapacity[memoryCapacity] = resource.MustParse("10737418240")
			return c
		},
	}
	want := recorded(t, allocated())
	for name, form := range forms {
		if got := recorded(t, form(allocated())); !want.SameAllocation(got) || !got.SameAllocation(want) {
			t.Errorf("%s: the allocation differs:\n%+v\n%+v", name, want.Allocation, got.Allocation)
		}
	}
}

// TestAllocation_OtherDevicesOrParameters_Differ changes each value that a plan depends on.
func TestAllocation_OtherDevicesOrParameters_Differ(t *testing.T) {
	changes := map[string]func(*resourceapi.DeviceAllocationResult){
		"request": func(d *resourceapi.DeviceAllocationResult) { d.Results[0].Request = "other" },
		"device":  func(d *resourceapi.DeviceAllocationResult) { d.Results[0].Device = "gpu-0000-43-00-0" },
		"admin access": func(d *resourceapi.DeviceAllocationResult) {
			d.Results[1].AdminAccess = nil
		},
		"pool": func(d *resourceapi.DeviceAllocationResult) { d.Results[0].Pool = "n/other" },
		"share": func(d *resourceapi.DeviceAllocationResult) {
			d.Results[0].ShareID = new(types.UID("other"))
		},
		"no share": func(d *resourceapi.DeviceAllocationResult) { d.Results[0].ShareID = nil },
		"memory": func(d *resourceapi.DeviceAllocationResult) {
			d.Results[0].ConsumedCapacity[memoryCapacity] = resource.MustParse("11Gi")
		},
		"compute": func(d *resourceapi.DeviceAllocationResult) {
			d.Results[0].ConsumedCapacity[computeCapacity] = resource.MustParse("41")
		},
		"fewer devices": func(d *resourceapi.DeviceAllocationResult) { d.Results = d.Results[:1] },
		"more devices": func(d *resourceapi.DeviceAllocationResult) {
			d.Results = append(d.Results, result("gpu-0000-43-00-0", admin))
		},
		"parameters": func(d *resourceapi.DeviceAllocationResult) {
			d.Config[1].Opaque.Parameters.Raw = []byte(strings.Replace(string(d.Config[1].Opaque.Parameters.Raw), "50", "51", 1))
		},
		"source": func(d *resourceapi.DeviceAllocationResult) {
			d.Config[1].Source = resourceapi.AllocationConfigSourceClass
		},
		"requests":          func(d *resourceapi.DeviceAllocationResult) { d.Config[1].Requests = []string{"gpu"} },
		"order of configs":  func(d *resourceapi.DeviceAllocationResult) { slices.Reverse(d.Config) },
		"fewer parameters":  func(d *resourceapi.DeviceAllocationResult) { d.Config = d.Config[:1] },
		"another's configs": func(d *resourceapi.DeviceAllocationResult) { d.Config[1].Opaque.Driver = "nic.example.com" },
	}
	want := Plan{Allocation: allocationOf(allocated().Status.Allocation.Devices, driver), Digest: "a"}
	for name, change := range changes {
		c := allocated()
		change(&c.Status.Allocation.Devices)
		got := Plan{Allocation: allocationOf(c.Status.Allocation.Devices, driver), Digest: "a"}
		if want.SameAllocation(got) || got.SameAllocation(want) {
			t.Errorf("%s: the allocation is the same", name)
		}
	}
}

// TestAllocation_FieldsOfTheAPI_AreDecided makes a new field of Kubernetes a decision: whether plans depend on it.
func TestAllocation_FieldsOfTheAPI_AreDecided(t *testing.T) {
	for of, fields := range map[reflect.Type]string{
		reflect.TypeFor[resourceapi.DeviceRequestAllocationResult](): "Request Driver Pool Device AdminAccess ShareID ConsumedCapacity" +
			" -Tolerations -BindingConditions -BindingFailureConditions -SkipNodeOperations",
		reflect.TypeFor[resourceapi.DeviceAllocationConfiguration](): "Source Requests DeviceConfiguration",
		reflect.TypeFor[resourceapi.DeviceConfiguration]():           "Opaque",
		reflect.TypeFor[resourceapi.OpaqueDeviceConfiguration]():     "Driver Parameters",
		reflect.TypeFor[resourceapi.DeviceAllocationResult]():        "Results Config",
	} {
		decided := strings.Fields(strings.ReplaceAll(fields, "-", ""))
		for i := range of.NumField() {
			if !slices.Contains(decided, of.Field(i).Name) {
				t.Errorf("%s.%s: decide whether plans depend on it, and add it to Allocation or, with a minus, to this list", of, of.Field(i).Name)
			}
		}
	}
}

// TestDigest_ForEarlierReleases_NeverChanges compares with digests by the commit of test/skew. After a downgrade its plugin
// compares them with its own, and would release the devices of a running pod if they differed.
func TestDigest_ForEarlierReleases_NeverChanges(t *testing.T) {
	for want, c := range map[string]*resourceapi.ResourceClaim{
		"50d86e72055c0255494ecba50c032afd": allocated(),
		"c3a98ac561035f59654c03af53ddb80e": claim(nil, result("gpu-0000-1b-00-0")),
	} {
		if got := recorded(t, c).Digest; got != want {
			t.Errorf("the digest is %s, and earlier releases have %s", got, want)
		}
	}
}

// TestSameAllocation_DigestOnly_Compared compares plans with those of records that have only a digest.
func TestSameAllocation_DigestOnly_Compared(t *testing.T) {
	now := recorded(t, allocated())
	earlier := now
	earlier.Allocation = Allocation{}
	if !now.SameAllocation(earlier) || !earlier.SameAllocation(now) {
		t.Error("the same digest is another allocation")
	}
	earlier.Digest = "other"
	if now.SameAllocation(earlier) || earlier.SameAllocation(now) {
		t.Error("another digest is the same allocation")
	}
}
