// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/selectortest"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/wire/demand"
)

const driver = "gpu.nvidia.com"

const attribute = `device.attributes["gpu.nvidia.com"].`

func class(name string, expressions ...string) *resourceapi.DeviceClass {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Selectors = selectors(expressions)
	return c
}

func selectors(expressions []string) (out []resourceapi.DeviceSelector) {
	for _, e := range expressions {
		out = append(out, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return out
}

func devices(class string, expressions ...string) resourceapi.DeviceClaim {
	return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Selectors: selectors(expressions)},
	}}}
}

// admin returns the requests with admin access.
func admin(d resourceapi.DeviceClaim) resourceapi.DeviceClaim {
	d.Requests[0].Exactly.AdminAccess = new(true)
	return d
}

// part returns the requests with a capacity.
func part(d resourceapi.DeviceClaim, name resourceapi.QualifiedName) resourceapi.DeviceClaim {
	d.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{name: resource.MustParse("1")}}
	return d
}

func cluster() Cluster {
	ours := `device.driver == "gpu.nvidia.com"`
	small := class("mig-1g.10gb.nvidia.com", ours+" && "+attribute+`type == "mig" && has(`+attribute+`profile) && `+attribute+`profile == "1g.10gb"`)
	small.Spec.ExtendedResourceName = new("nvidia.com/mig-1g.10gb")
	whole := class("gpu.nvidia.com", ours+" && "+attribute+`type == "gpu"`)
	whole.Spec.ExtendedResourceName = new("nvidia.com/gpu")
	return Cluster{
		Driver: driver, Known: []string{"1g.10gb", "2g.20gb", "3g.40gb"},
		Classes: []*resourceapi.DeviceClass{
			small, whole, class("mig.nvidia.com", ours+" && "+attribute+`type == "mig"`), class("ours", ours), class("any"),
			class("nvlink.gpu.nvidia.com", ours+" && "+attribute+`type == "nvlink-group"`),
			class("monitor.gpu.nvidia.com", ours+" && "+attribute+`type == "monitor"`),
			class("nic", `device.driver == "nic.example.com"`), class("other", `device.attributes["nic.example.com"].speed == "fast"`),
			class("root", `device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00"`+" && "+ours),
		},
	}
}

func reading(e string) selector.Reading {
	r, _ := selector.Read(e)
	return r
}

func TestDemand_Request_AsksForTheDevicesThatItCouldGet(t *testing.T) {
	all := cluster().Known
	groups := []string{demand.Groups}
	everything := append(slices.Clone(all), demand.Groups)
	for name, c := range map[string]struct {
		asks resourceapi.DeviceClaim
		want []string
	}{
		"a profile's class":                 {devices("mig-1g.10gb.nvidia.com"), []string{"1g.10gb"}},
		"all partitions":                    {devices("mig.nvidia.com"), all},
		"a profile by selector":             {devices("mig.nvidia.com", attribute+`profile == "3g.40gb"`), []string{"3g.40gb"}},
		"two selectors":                     {devices("mig.nvidia.com", "true", attribute+`profile == "3g.40gb"`), []string{"3g.40gb"}},
		"a list of profiles":                {devices("mig.nvidia.com", attribute+`profile in ["1g.10gb", "3g.40gb"]`), []string{"1g.10gb", "3g.40gb"}},
		"one or the other":                  {devices("mig.nvidia.com", attribute+`profile == "1g.10gb" || `+attribute+`profile == "2g.20gb"`), []string{"1g.10gb", "2g.20gb"}},
		"a profile or anything":             {devices("mig.nvidia.com", attribute+`profile == "1g.10gb" || device.allowMultipleAllocations`), append(slices.Clone(all), demand.Shares)},
		"a share of a GPU":                  {part(devices("gpu.nvidia.com"), "memory"), []string{demand.Shares}},
		"a share of a model's GPU":          {part(devices("gpu.nvidia.com", attribute+`productName == "NVIDIA L40S"`), "memory"), []string{demand.Shares}},
		"a share of a partition":            {part(devices("mig-1g.10gb.nvidia.com"), "compute"), []string{"1g.10gb", demand.Shares}},
		"a part of any device":              {part(devices("ours"), "gpu.nvidia.com/memory"), append(slices.Clone(everything), demand.Shares)},
		"a part of a group":                 {part(devices("nvlink.gpu.nvidia.com"), "memory"), groups},
		"a part of another driver's device": {part(devices("nic"), "bandwidth"), nil},
		"shareable GPUs":                    {devices("gpu.nvidia.com", `device.allowMultipleAllocations`), []string{demand.Shares}},
		"GPUs with MPS":                     {devices("gpu.nvidia.com", attribute+`isolation == "mps"`), []string{demand.Shares}},
		"room for shares":                   {devices("gpu.nvidia.com", `device.capacity["gpu.nvidia.com"].shares.isGreaterThan(quantity("3"))`), []string{demand.Shares}},
		"a compute capability":              {devices("gpu.nvidia.com", attribute+`cudaComputeCapability.isGreaterThan(semver("9.0.0"))`), nil},
		"what the policy adds":              {devices("gpu.nvidia.com", `device.driver != "gpu.nvidia.com" || !("maxShares" in device.attributes["gpu.nvidia.com"])`), nil},
		"a comparison of capacities":        {devices("mig.nvidia.com", `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("15Gi")) > 0`), all},
		"a prefix of profiles":              {devices("mig.nvidia.com", attribute+`profile.startsWith("1g")`), all},
		"an unreadable selector":            {devices("mig.nvidia.com", `((`), all},
		"an alias":                          {devices("mig.nvidia.com", `cel.bind(a, device.attributes["gpu.nvidia.com"], a.profile == "1g.10gb")`), all},
		"not a profile":                     {devices("mig.nvidia.com", `!(`+attribute+`profile == "1g.10gb")`), all},
		"a profile that no GPU has":         {devices("mig.nvidia.com", attribute+`profile == "9g.99gb"`), nil},
		"whole GPUs":                        {devices("gpu.nvidia.com"), nil},
		"any device of the driver":          {devices("ours"), everything},
		"any device":                        {devices("any"), everything},
		"the driver and a PCIe root":        {devices("root"), everything},
		"groups":                            {devices("nvlink.gpu.nvidia.com"), groups},
		"groups of four":                    {devices("nvlink.gpu.nvidia.com", attribute+`gpuCount == 4`), groups},
		"groups by a selector":              {devices("ours", attribute+`type == "nvlink-group"`), groups},
		"groups by an odd selector":         {devices("ours", `!(`+attribute+`type in ["gpu", "mig"])`), everything},
		"partitions or groups":              {devices("ours", attribute+`type in ["mig", "nvlink-group"]`), everything},
		"any device with a profile":         {devices("ours", attribute+`profile == "1g.10gb"`), []string{"1g.10gb"}},
		"a driver in an odd way":            {devices("any", `device.driver.startsWith("gpu.")`), everything},
		"a class or a group": {resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
			{DeviceClassName: "nvlink.gpu.nvidia.com"}, {DeviceClassName: "mig-1g.10gb.nvidia.com"},
		}}}}, []string{"1g.10gb", demand.Groups}},
		"monitor devices":                      {admin(devices("monitor.gpu.nvidia.com")), []string{demand.Monitors}},
		"monitor devices by a selector":        {admin(devices("ours", attribute+`type == "monitor"`)), []string{demand.Monitors}},
		"any device, with admin access":        {admin(devices("ours")), []string{all[0], all[1], all[2], demand.Monitors, demand.Groups}},
		"a GPU, with admin access":             {admin(devices("gpu.nvidia.com")), nil},
		"monitor devices, but no admin access": {devices("monitor.gpu.nvidia.com"), nil},
		"another driver":                       {devices("nic"), nil},
		"attributes of another driver":         {devices("other"), nil},
		"a class that does not exist":          {devices("none"), nil},
		"contradicting selectors":              {devices("mig-1g.10gb.nvidia.com", attribute+`profile == "2g.20gb"`), nil},
		"alternatives": {resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
			{DeviceClassName: "gpu.nvidia.com"}, {DeviceClassName: "mig.nvidia.com", Selectors: selectors([]string{attribute + `profile == "2g.20gb"`})},
		}}}}, []string{"2g.20gb"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := cluster()
			in.Asked = AsksOf(&resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{Devices: c.asks}}, driver)
			if got := in.Demand(reading); !slices.Equal(got, c.want) {
				t.Errorf("a claim asks for %q, want %q", got, c.want)
			}
			in.Asked = AsksOf(&resourceapi.ResourceClaimTemplate{
				Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: c.asks}},
			}, driver)
			if got := in.Demand(reading); !slices.Equal(got, c.want) {
				t.Errorf("a template asks for %q, want %q", got, c.want)
			}
		})
	}
}

func TestDemand_Allocation_AsksForItsDevice(t *testing.T) {
	held := func(driver, device string) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{Driver: driver, Device: device}}},
		}}}
	}
	c := cluster()
	shared := held(driver, "gpu-0000-2b-00-0")
	shared.Status.Allocation.Devices.Results[0].ShareID = new(types.UID("u"))
	for _, claim := range []*resourceapi.ResourceClaim{
		shared, held(driver, "gpu-0000-1b-00-0-mig-2g-20gb-4"), held(driver, "gpu-0000-1b-00-0"), held(driver, "nvlink-4-0000-1b-00-0"), held(driver, "monitor-0000-1b-00-0"), held("other", "gpu-0000-1b-00-0-mig-3g-40gb-4"),
	} {
		c.Asked = append(c.Asked, AsksOf(claim, driver)...)
	}
	if got := c.Demand(reading); !slices.Equal(got, []string{"2g.20gb", demand.Monitors, demand.Groups, demand.Shares}) {
		t.Errorf("%q", got)
	}
}

func TestDemand_ExtendedResource_AsksByItsClass(t *testing.T) {
	for name, want := range map[corev1.ResourceName][]string{
		"nvidia.com/mig-1g.10gb": {"1g.10gb"}, "nvidia.com/gpu": nil, "cpu": nil,
		"deviceclass.resource.kubernetes.io/mig-1g.10gb.nvidia.com": {"1g.10gb"},
		"deviceclass.resource.kubernetes.io/mig.nvidia.com":         cluster().Known,
		"deviceclass.resource.kubernetes.io/nvlink.gpu.nvidia.com":  {demand.Groups},
	} {
		limits := corev1.ResourceList{name: resource.MustParse("1")}
		for _, pod := range []corev1.PodSpec{
			{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: limits}}}},
			{InitContainers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: limits}}}},
		} {
			c := cluster()
			c.Asked = AsksOf(&corev1.Pod{Spec: pod}, driver)
			if got := c.Demand(reading); !slices.Equal(got, want) {
				t.Errorf("%s asks for %q, want %q", name, got, want)
			}
		}
	}
}

func TestDemand_RandomClasses_AsksForTheSchedulersClass(t *testing.T) {
	for seed := range seedtest.Each(t, 200) {
		classes := selectortest.Classes(rand.New(rand.NewPCG(seed, 4)))
		classes = append(classes, class("cpu", `device.driver == "gpu.nvidia.com"`)) // It serves none of the kubelet's resources.
		for _, name := range selectortest.Resources(classes) {
			c := cluster()
			c.Classes = classes
			var want []string
			var expressions []string
			if class := selectortest.Scheduled(classes, name); class != nil {
				c.Asked = AsksOf(&resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{Devices: devices(class.Name)}}, driver)
				want, expressions = c.Demand(reading), selector.Expressions(class.Spec.Selectors)
			}
			c.Asked = AsksOf(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{name: resource.MustParse("1")}},
			}}}}, driver)
			if got := c.Demand(reading); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %s asks for %q, want %q", seed, name, got, want)
			}
			if len(c.Asked) == 0 && name == corev1.ResourceCPU {
				continue // The kubelet serves it.
			}
			if got := c.Expressions(c.Asked[0]); !slices.Equal(got, expressions) {
				t.Fatalf("seed %d: %s has the selectors %q, want %q", seed, name, got, expressions)
			}
		}
	}
}

// TestAsks_ObjectsChange_CountsFollow has many objects ask for few things.
func TestAsks_ObjectsChange_CountsFollow(t *testing.T) {
	var asks Asks
	of := func(class string) []Ask {
		return AsksOf(&resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{Devices: devices(class)}}, driver)
	}
	want := func(when string, classes ...string) {
		t.Helper()
		var got []string
		for _, a := range asks.All() {
			got = append(got, a.Class)
		}
		if slices.Sort(got); !slices.Equal(got, classes) {
			t.Errorf("%s: %q, want %q", when, got, classes)
		}
	}
	const objects = 1000
	for range objects {
		if !asks.Replace(nil, of("a")) {
			t.Error("a new object changes nothing")
		}
	}
	want("new objects", "a")
	if asks.Replace(of("a"), of("a")) {
		t.Error("an object that asks for the same counts as changed")
	}
	asks.Replace(of("a"), of("b"))
	want("one asks for another class", "a", "b")
	for range objects - 1 {
		asks.Replace(of("a"), nil)
	}
	want("all but that one are gone", "b")
	asks.Replace(of("b"), nil)
	want("all are gone")
}

// TestEverywhere_RequestThatDoesNotWait_AllNodesPublish has requests that get other devices where an asked one is not published.
func TestEverywhere_RequestThatDoesNotWait_AllNodesPublish(t *testing.T) {
	alternatives := func(classes ...string) resourceapi.DeviceClaim {
		r := resourceapi.DeviceRequest{Name: "r"}
		for i, c := range classes {
			r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{Name: string(rune('a' + i)), DeviceClassName: c})
		}
		return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{r}}
	}
	every := devices("mig-1g.10gb.nvidia.com")
	every.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	const small, groups, gpus = "mig-1g.10gb.nvidia.com", "nvlink.gpu.nvidia.com", "gpu.nvidia.com"
	for name, c := range map[string]struct {
		asks resourceapi.DeviceClaim
		want []string
	}{
		"one device":            {devices(small), nil},
		"one alternative":       {alternatives(small), nil},
		"first of two":          {alternatives(small, gpus), []string{"1g.10gb"}},
		"second of two":         {alternatives(gpus, small), nil},
		"second of three":       {alternatives(gpus, groups, small), []string{demand.Groups}},
		"all devices":           {every, []string{"1g.10gb"}},
		"two alternatives each": {resourceapi.DeviceClaim{Requests: append(alternatives(gpus, small).Requests, alternatives(groups, gpus).Requests...)}, []string{demand.Groups}},
	} {
		in := cluster()
		in.Asked = AsksOf(&resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{Devices: c.asks}}, driver)
		if got := in.Everywhere().Demand(reading); !slices.Equal(got, c.want) {
			t.Errorf("%s: all nodes publish %q, want %q", name, got, c.want)
		}
	}
}
