// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// badNodes returns the ways in which one node can publish wrong devices. Each attribute and capacity is absent, of each kind,
// and at the ends of its range. Some devices have many.
func badNodes() map[string]func(d *resourceapi.Device) {
	bad := map[string]func(d *resourceapi.Device){
		"no attributes": func(d *resourceapi.Device) { d.Attributes = nil },
		"no capacities": func(d *resourceapi.Device) { d.Capacity = nil },
		"nothing":       func(d *resourceapi.Device) { d.Attributes, d.Capacity = nil, nil },
		"many names": func(d *resourceapi.Device) {
			d.Attributes = maps.Clone(d.Attributes)
			for i := range 100 {
				d.Attributes[resourceapi.QualifiedName(fmt.Sprintf("x%d%s", i, strings.ReplaceAll(d.Name, "-", "")))] = resourceapi.DeviceAttribute{BoolValue: new(true)}
			}
		},
		"many values": func(d *resourceapi.Device) {
			d.Attributes = maps.Clone(d.Attributes)
			d.Attributes["brand"] = resourceapi.DeviceAttribute{StringValue: new(strings.Repeat("b", 10) + d.Name)}
		},
	}
	for what, value := range map[string]resourceapi.DeviceAttribute{
		"no value": {}, "a text": {StringValue: new("x")}, "an empty text": {StringValue: new("")}, "a number": {IntValue: new(int64(math.MinInt64))},
		"a large number": {IntValue: new(int64(math.MaxInt64))}, "a bool": {BoolValue: new(true)}, "a version": {VersionValue: new("0.0.0")}, "a wrong version": {VersionValue: new("x")},
	} {
		for _, e := range resourceslices.Catalogue() {
			if !e.Capacity {
				bad[e.Name+" is "+what] = func(d *resourceapi.Device) {
					d.Attributes = maps.Clone(d.Attributes)
					d.Attributes[resourceapi.QualifiedName(e.Name)] = value
				}
			}
		}
	}
	for _, e := range resourceslices.Catalogue() {
		bad[e.Name+" is absent"] = func(d *resourceapi.Device) {
			d.Attributes, d.Capacity = maps.Clone(d.Attributes), maps.Clone(d.Capacity)
			delete(d.Attributes, resourceapi.QualifiedName(e.Name))
			delete(d.Capacity, resourceapi.QualifiedName(e.Name))
		}
		for _, amount := range []string{"-1", "0", "1e99", "1n", "9223372036854775807", "9223372036854775808"} {
			if e.Capacity {
				bad[e.Name+" is "+amount] = func(d *resourceapi.Device) {
					d.Capacity = maps.Clone(d.Capacity)
					d.Capacity[resourceapi.QualifiedName(e.Name)] = resourceapi.DeviceCapacity{Value: resource.MustParse(amount)}
				}
			}
		}
	}
	return bad
}

// TestReview_OneNodePublishesAnything_CorrectObjectsAreAllowed adds a node with wrong devices to a cluster, before the others
// in order. Objects that are correct without it are allowed with it.
func TestReview_OneNodePublishesAnything_CorrectObjectsAreAllowed(t *testing.T) {
	good := newView(t, patient, "hgx-h100")
	const mig = ours + attr + `type == "mig" && `
	correct := map[string]string{
		"a GPU": of("gpu.nvidia.com", ""), "all GPUs of a node": of("gpu.nvidia.com", ", count: 8"), "a share": of("gpu.nvidia.com", ", capacity: {requests: {memory: 10Gi}}"),
		"a partition": of("mig.nvidia.com", selecting(`has(`+attr+`profile) && `+attr+`profile == "1g.10gb"`)),
		"a group":     of("nvlink.gpu.nvidia.com", selecting(attr+`gpuCount == 4`)), "GPUs of one root": of("gpu.nvidia.com", ", count: 2") + "\n  constraints: [{matchAttribute: gpu.nvidia.com/nvlinkGroup}]",
		"alternatives":                     claim("  requests: [{name: r, firstAvailable: [{name: a, deviceClassName: mig.nvidia.com}, {name: b, deviceClassName: gpu.nvidia.com}]}]"),
		"the class of GPUs":                class(ours + attr + `type == "gpu"`),
		"a class by model":                 class(whole + attr + `productName == "NVIDIA H100 80GB HBM3"`),
		"a class by a text":                class(whole + attr + `productName.lowerAscii().matches("h100")`),
		"a class by version":               class(whole + attr + `cudaComputeCapability.isGreaterThan(semver("8.0.0"))`),
		"a class by memory":                class(whole + `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0`),
		"a class by profile":               class(mig + attr + `profile == "1g.10gb"`),
		"a class by index":                 class(whole + attr + `index < 4`),
		"a class by MIG":                   class(whole + attr + `migCapable`),
		"a class by an optional attribute": class(whole + `has(` + attr + `nvlinkLinks) && ` + attr + `nvlinkLinks > 4`),
	}
	deny := Options{Binding: true, DenyUnsatisfiable: true}
	for name, object := range correct {
		if r := Review(t.Context(), good, asked(t, object), deny); !r.Allowed || len(r.Warnings) > 0 {
			t.Fatalf("%s without the node: %+v", name, r)
		}
	}
	published, err := slicetest.Node("hgx-h100", "bad", 2)
	if err != nil {
		t.Fatal(err)
	}
	for how, change := range badNodes() {
		if !seedtest.Chosen(how) {
			continue
		}
		var all []*pool.Slice
		for _, s := range published {
			s = s.DeepCopy()
			for i := range s.Spec.Devices {
				change(&s.Spec.Devices[i])
			}
			all = append(all, new((&pool.Shapes{}).Trim(s)))
		}
		v := NewClusterView("gpu.nvidia.com", ask.Asker{Evaluator: ask.NewEvaluator(), Classes: good.Classes}, slices.Concat([]pool.Pool{pool.Of(all)}, good.pools))
		v.SearchFor, v.reviewFor = patient, patient
		for name, object := range correct {
			r := Review(t.Context(), v, asked(t, object), deny)
			if !r.Allowed {
				t.Errorf("%s, where %s: %s", name, how, r.Result.Message)
			}
			for _, w := range r.Warnings {
				if !strings.Contains(w, "on node bad") && !strings.Contains(w, "matches devices of the types") {
					t.Errorf("%s, where %s: %s", name, how, w)
				}
			}
		}
		if len(v.here) > len(good.here)+maxNames {
			t.Errorf("%s: %d names", how, len(v.here))
		}
	}
}
