// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package allocators

import (
	"fmt"
	"math/rand/v2"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/wire"
)

// The input and the output of the program in allocate, with the same JSON.
type (
	input struct {
		Node      string
		Slices    map[string][]*resourceapi.ResourceSlice
		Classes   []*resourceapi.DeviceClass
		Scenarios []scenario
	}
	scenario struct {
		Shares, Counters bool
		Steps            []step
	}
	step struct {
		Slices   string                       `json:",omitempty"`
		Allocate []*resourceapi.ResourceClaim `json:",omitempty"`
		Release  []string                     `json:",omitempty"`
	}
	result struct {
		Devices [][]resourceapi.DeviceRequestAllocationResult
		Error   string
		Panic   string
	}
)

// form is a form of claims that the documentation shows. want has the number of devices of all claims of each step.
type form struct {
	name  string
	steps []step
	want  []int
	// counters and shares are the features of slices without which the node does not have the devices.
	counters, shares bool
}

const (
	gpuClass     = "gpu.nvidia.com"
	migClass     = "mig.nvidia.com"
	groupClass   = "nvlink.gpu.nvidia.com"
	monitorClass = "monitor.gpu.nvidia.com"
	driver       = "gpu.nvidia.com"
)

func classes() (out []*resourceapi.DeviceClass) {
	for name, kind := range map[string]string{gpuClass: "gpu", migClass: "mig", groupClass: "nvlink-group", monitorClass: "monitor"} {
		expression := fmt.Sprintf(`device.driver == %q && device.attributes[%q].type == %q`, driver, driver, kind)
		out = append(out, &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{cel(expression)}},
		})
	}
	return out
}

func cel(expression string) resourceapi.DeviceSelector {
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
}

func profile(name string) string {
	return fmt.Sprintf(`device.attributes[%q].profile == %q`, driver, name)
}

func groupOf(gpus int) string {
	return fmt.Sprintf(`device.attributes[%q].gpuCount == %d`, driver, gpus)
}

func index(n int) string { return fmt.Sprintf(`device.attributes[%q].index == %d`, driver, n) }

// exactly requests a number of devices of a class; 0: all.
func exactly(class string, count int64, expressions ...string) *resourceapi.ExactDeviceRequest {
	r := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	if count == 0 {
		r.AllocationMode = resourceapi.DeviceAllocationModeAll
	}
	for _, e := range expressions {
		r.Selectors = append(r.Selectors, cel(e))
	}
	return r
}

// share requests a share of a device, by its memory.
func share(memory string, r *resourceapi.ExactDeviceRequest) *resourceapi.ExactDeviceRequest {
	r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
	return r
}

func claim(name string, requests ...*resourceapi.ExactDeviceRequest) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "uid"}}
	for i, r := range requests {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", i), Exactly: r})
	}
	return c
}

// first is a claim whose request has alternatives.
func first(name string, alternatives ...*resourceapi.ExactDeviceRequest) *resourceapi.ResourceClaim {
	c := claim(name)
	r := resourceapi.DeviceRequest{Name: "r"}
	for i, a := range alternatives {
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: fmt.Sprintf("a%d", i), DeviceClassName: a.DeviceClassName, Selectors: a.Selectors, AllocationMode: a.AllocationMode,
			Count: a.Count, Capacity: a.Capacity,
		})
	}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{r}
	return c
}

// same has all devices of a claim agree in an attribute.
func same(attribute string, c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	name := resourceapi.FullyQualifiedName(attribute)
	c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &name}}
	return c
}

func monitor(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	r := c.Spec.Devices.Requests[0].Exactly
	r.AdminAccess = new(true)
	r.Tolerations = []resourceapi.DeviceToleration{{Key: wire.MonitorTaint, Operator: resourceapi.DeviceTolerationOpExists}}
	return c
}

func pod(claims ...*resourceapi.ResourceClaim) step { return step{Allocate: claims} }

func release(claims ...string) step { return step{Release: claims} }

// node is a node of the test.
type node struct {
	board string
	gpus  int
	// share is memory of which a GPU has two such shares, and no third one.
	share string
	// all is the MIG profile of the whole GPU, half one that fits twice, small one that fits more often. Empty: no MIG.
	all, half, small string
	groups           bool
}

var nodes = []node{
	{board: "hgx-h100", gpus: 4, share: "30Gi", all: "7g.80gb", half: "3g.40gb", small: "1g.10gb", groups: true},
	{board: "l40s-4", gpus: 4, share: "20Gi"},
}

// forms returns the documented forms of claims, for a node.
func forms(n node) []form {
	gpus := int64(n.gpus)
	out := []form{
		{name: "one whole GPU each", steps: []step{
			pod(claim("a", exactly(gpuClass, 1))), pod(claim("b", exactly(gpuClass, gpus-1))), pod(claim("c", exactly(gpuClass, 1))),
			release("a"), pod(claim("d", exactly(gpuClass, 1))), pod(claim("e", exactly(gpuClass, 1))),
		}, want: []int{1, n.gpus - 1, 0, 0, 1, 0}},
		{name: "all GPUs", steps: []step{pod(claim("a", exactly(gpuClass, 0))), pod(claim("b", exactly(gpuClass, 1)))}, want: []int{n.gpus, 0}},
		{name: "all GPUs after a release", steps: []step{
			pod(claim("a", exactly(gpuClass, 1))), release("a"), pod(claim("b", exactly(gpuClass, 0))),
		}, want: []int{1, 0, n.gpus}},
		{name: "two claims of a pod", steps: []step{
			pod(claim("a", exactly(gpuClass, 1)), claim("b", exactly(gpuClass, 1))), pod(claim("c", exactly(gpuClass, gpus-1))),
		}, want: []int{2, 0}},
		{name: "first available, the first of them", steps: []step{
			pod(first("a", exactly(gpuClass, 1), exactly(gpuClass, 2))), pod(claim("b", exactly(gpuClass, gpus-1))),
		}, want: []int{1, n.gpus - 1}},
		{name: "first available, by model", steps: []step{
			pod(first("a", exactly(gpuClass, 1, "false"), exactly(gpuClass, gpus))), pod(claim("b", exactly(gpuClass, 1))),
		}, want: []int{n.gpus, 0}},
		{name: "monitors of a full node", shares: true, steps: []step{
			pod(claim("a", exactly(gpuClass, gpus))), pod(monitor(claim("b", exactly(monitorClass, 0)))), pod(monitor(claim("c", exactly(monitorClass, 0)))),
			pod(claim("d", exactly(gpuClass, 1))),
		}, want: []int{n.gpus, n.gpus, n.gpus, 0}},
		{name: "admin access to a GPU in use", steps: []step{
			pod(monitor(claim("a", exactly(gpuClass, 1)))), pod(claim("b", exactly(gpuClass, gpus))),
		}, want: []int{1, n.gpus}},
		{name: "shares", shares: true, steps: []step{
			pod(claim("a", share(n.share, exactly(gpuClass, 1, index(0))))), pod(claim("b", share(n.share, exactly(gpuClass, 1, index(0))))),
			pod(claim("c", share(n.share, exactly(gpuClass, 1, index(0))))), pod(claim("d", exactly(gpuClass, gpus))),
			pod(claim("e", exactly(gpuClass, gpus-1))), release("a", "b"), pod(claim("f", exactly(gpuClass, 1))),
		}, want: []int{1, 1, 0, 0, n.gpus - 1, 0, 1}},
		{name: "shares beside whole GPUs", shares: true, steps: []step{
			pod(claim("a", exactly(gpuClass, 1))), pod(claim("b", share("10Gi", exactly(gpuClass, 1)))), pod(claim("c", exactly(gpuClass, gpus-2))),
			pod(claim("d", exactly(gpuClass, 1))), pod(claim("e", share("10Gi", exactly(gpuClass, 1)))),
		}, want: []int{1, 1, n.gpus - 2, 0, 1}},
	}
	partitions := []form{
		{name: "partitions and whole GPUs", counters: true, steps: []step{
			pod(claim("a", exactly(migClass, 1, profile(n.small)))), pod(claim("b", exactly(gpuClass, gpus))), pod(claim("c", exactly(gpuClass, gpus-1))),
			pod(claim("d", exactly(migClass, 1, profile(n.half)))), pod(claim("e", exactly(migClass, 1, profile(n.all)))),
			release("a", "d"), pod(claim("f", exactly(migClass, 1, profile(n.all)))),
		}, want: []int{1, 0, n.gpus - 1, 1, 0, 0, 1}},
		{name: "a whole GPU and its largest partition", counters: true, steps: []step{
			pod(claim("a", exactly(gpuClass, gpus-1))), pod(claim("b", exactly(migClass, 1, profile(n.all)))), pod(claim("c", exactly(migClass, 1, profile(n.all)))),
			pod(claim("d", exactly(migClass, 1, profile(n.small)))),
		}, want: []int{n.gpus - 1, 1, 0, 0}},
		{name: "a share of a GPU and its partitions", counters: true, shares: true, steps: []step{
			pod(claim("a", share("10Gi", exactly(gpuClass, 1, index(0))))), pod(claim("b", exactly(migClass, int64(n.gpus), profile(n.all)))),
			pod(claim("c", exactly(migClass, int64(n.gpus-1), profile(n.all)))),
		}, want: []int{1, 0, n.gpus - 1}},
		{name: "a share of a partition", counters: true, shares: true, steps: []step{
			pod(claim("a", share("2Gi", exactly(migClass, 1, profile(n.small))))), pod(claim("b", share("2Gi", exactly(migClass, 1, profile(n.small))))),
			pod(claim("c", exactly(gpuClass, gpus))), pod(claim("d", exactly(gpuClass, gpus-1))), pod(claim("e", exactly(migClass, 1, profile(n.all)))),
		}, want: []int{1, 1, 0, n.gpus - 1, 0}},
		{name: "partitions of one GPU", counters: true, steps: []step{
			pod(claim("a", exactly(migClass, 1, profile(n.small)))), pod(same("gpu.nvidia.com/parentUUID", claim("b", exactly(migClass, 2, profile(n.half))))),
		}, want: []int{1, 2}},
		{name: "a whole GPU and a partition for one pod", counters: true, steps: []step{
			pod(claim("a", exactly(gpuClass, 1)), claim("b", exactly(migClass, 1, profile(n.all)))), pod(claim("c", exactly(gpuClass, gpus-1))),
		}, want: []int{2, 0}},
		{name: "first available, whole GPUs or partitions", counters: true, steps: []step{
			pod(first("a", exactly(gpuClass, gpus+1), exactly(migClass, 1, profile(n.all)))), pod(claim("b", exactly(gpuClass, gpus-1))),
		}, want: []int{1, n.gpus - 1}},
		{name: "first available, on an empty node", counters: true, steps: []step{
			pod(first("a", exactly(gpuClass, gpus+1), exactly(gpuClass, gpus))), pod(claim("b", exactly(migClass, 1))),
		}, want: []int{n.gpus, 0}},
		{name: "all partitions of a profile", counters: true, steps: []step{
			pod(claim("a", exactly(migClass, 0, profile(n.all)))), pod(claim("b", exactly(gpuClass, 1))),
		}, want: []int{n.gpus, 0}},
	}
	groups := []form{
		{name: "groups and whole GPUs", counters: true, steps: []step{
			pod(claim("a", exactly(groupClass, 1, groupOf(2)))), pod(claim("b", exactly(gpuClass, gpus-1))), pod(claim("c", exactly(gpuClass, gpus-2))),
			pod(claim("d", exactly(groupClass, 1))), release("a"), pod(claim("e", exactly(groupClass, 1, groupOf(2)))),
		}, want: []int{1, 0, n.gpus - 2, 0, 0, 1}},
		{name: "a group with a shared GPU", counters: true, shares: true, steps: []step{
			pod(claim("a", share("10Gi", exactly(gpuClass, 1)))), pod(claim("b", exactly(groupClass, 1, groupOf(n.gpus)))),
			pod(claim("c", exactly(groupClass, 1, groupOf(n.gpus/2)))), pod(claim("d", exactly(groupClass, 1, groupOf(n.gpus/2)))),
		}, want: []int{1, 0, 1, 0}},
		{name: "a group with a partitioned GPU", counters: true, steps: []step{
			pod(claim("a", exactly(migClass, 1, profile(n.small)))), pod(claim("b", exactly(groupClass, 1, groupOf(n.gpus)))),
			pod(claim("c", exactly(groupClass, 1, groupOf(n.gpus/2)))), pod(claim("d", exactly(groupClass, 1, groupOf(n.gpus/2)))),
		}, want: []int{1, 0, 1, 0}},
		{name: "all groups", counters: true, steps: []step{
			pod(claim("a", exactly(groupClass, 0, groupOf(2)))), pod(claim("b", exactly(gpuClass, 1))),
		}, want: []int{n.gpus / 2, 0}},
		{name: "first available, a group or GPUs", counters: true, steps: []step{
			pod(claim("a", exactly(gpuClass, 1))), pod(first("b", exactly(groupClass, 2, groupOf(n.gpus/2)), exactly(gpuClass, gpus-1))),
		}, want: []int{1, n.gpus - 1}},
	}
	if n.all != "" {
		out = append(out, partitions...)
	}
	if n.groups {
		out = append(out, groups...)
	}
	return out
}

// walk is a sequence of claims of all kinds that come and go.
func walk(n node, seed uint64, steps int) (out []step) {
	r := rand.New(rand.NewPCG(1, seed))
	var names []string
	for i := range steps {
		if len(names) > 0 && r.IntN(5) < 2 {
			k := r.IntN(len(names))
			out, names = append(out, release(names[k])), slices.Delete(names, k, k+1)
			continue
		}
		name := fmt.Sprintf("c%d", i)
		names = append(names, name)
		choices := []*resourceapi.ResourceClaim{
			claim(name, exactly(gpuClass, int64(1+r.IntN(2)))),
			claim(name, share([]string{"10Gi", n.share, "1Gi"}[r.IntN(3)], exactly(gpuClass, 1))),
			claim(name, exactly(migClass, int64(1+r.IntN(2)), profile(n.small))),
			claim(name, exactly(migClass, 1, profile(n.half))),
			claim(name, exactly(migClass, 1, profile(n.all))),
			claim(name, share("1Gi", exactly(migClass, 1, profile(n.small)))),
			claim(name, exactly(groupClass, 1, groupOf(2))),
			first(name, exactly(groupClass, 1, groupOf(n.gpus)), exactly(migClass, 1, profile(n.half)), exactly(gpuClass, 1)),
			first(name, exactly(gpuClass, int64(n.gpus)), share("5Gi", exactly(gpuClass, 1)), exactly(migClass, 1)),
			claim(name, exactly(gpuClass, 1), exactly(migClass, 1)),
		}
		out = append(out, pod(choices[r.IntN(len(choices))]))
	}
	return out
}
