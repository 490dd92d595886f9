// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/why"
)

// identify gives the boards of each node UUIDs and fabric IDs of their own. Some boards have PCI roots of their own.
func identify(r *rand.Rand, e *env) {
	fabrics := []string{"a", "b", ""}
	for _, s := range e.Slices {
		fabric, roots := fabrics[r.IntN(len(fabrics))], r.IntN(3) == 0
		for _, d := range s.Spec.Devices {
			for name, a := range d.Attributes {
				switch {
				case name == "uuid" || name == "parentUUID" || name == "nvlinkGroup":
					d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: new(*a.StringValue + *s.Spec.NodeName)}
				case name == "resource.kubernetes.io/pcieRoot" && roots:
					d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: new("root-" + *s.Spec.NodeName)}
				}
			}
			if fabric != "" && d.Attributes["type"].StringValue != nil && *d.Attributes["type"].StringValue == "gpu" {
				d.Attributes["fabricClusterUUID"] = resourceapi.DeviceAttribute{StringValue: new("fabric-" + fabric)}
				d.Attributes["cliqueID"] = resourceapi.DeviceAttribute{StringValue: new(fmt.Sprint(r.IntN(2)))}
			}
		}
	}
}

// TestAsk_PackedSlices_AnswersAsForWholeSlices asks for attributes in which nodes of one Template differ, too.
func TestAsk_PackedSlices_AnswersAsForWholeSlices(t *testing.T) {
	results, shared := map[why.Result]int{}, 0
	for seed := range seedtest.Each(t, 80) {
		r := rand.New(rand.NewPCG(seed, 73))
		e := newEnv(t)
		for i := range 3 + r.IntN(5) {
			e.node(t, fmt.Sprintf("n%d", i), []string{"hgx-h100", "a30"}[r.IntN(2)], 2)
		}
		identify(r, e)
		for i := range r.IntN(12) {
			e.Start(whytest.RandomClaim(r, fmt.Sprintf("held-%d", i)), e.Nodes[r.IntN(len(e.Nodes))].Name)
		}
		for i := range r.IntN(3) {
			s := e.Slices[r.IntN(len(e.Slices))]
			if len(s.Spec.Devices) == 0 {
				continue
			}
			d := &s.Spec.Devices[r.IntN(len(s.Spec.Devices))]
			broken := resourceapi.DeviceTaint{Key: "gpu.nvidia.com/unhealthy", Value: "lost", Effect: resourceapi.DeviceTaintEffectNoExecute}
			if i == 0 {
				d.Taints = append(d.Taints, broken)
				continue
			}
			rule := &resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &s.Spec.Pool.Name}, Taint: broken,
			}}
			if r.IntN(2) == 0 {
				rule.Spec.DeviceSelector.Device = &d.Name
			}
			e.Rules = append(e.Rules, rule)
		}
		asked := whytest.RandomClaim(r, "asked")
		q := asked.Spec.Devices.Requests[0].Exactly
		node := e.Nodes[r.IntN(len(e.Nodes))].Name
		switch r.IntN(6) {
		case 0:
			q.Selectors = selectors(fmt.Sprintf(`device.attributes["gpu.nvidia.com"].parentUUID.endsWith(%q)`, node))
		case 1:
			q.Selectors = selectors(`"cliqueID" in device.attributes["gpu.nvidia.com"] && device.attributes["gpu.nvidia.com"].cliqueID == "1"`)
		case 2:
			name := resourceapi.FullyQualifiedName([]string{"gpu.nvidia.com/cliqueID", "gpu.nvidia.com/nvlinkGroup", "gpu.nvidia.com/uuid"}[r.IntN(3)])
			asked.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &name}}
		}
		whole, slim := e.Cluster, e.Cluster
		whole.Slices, slim.Slices = whytest.Unshared(e.Slices), packed(t, e.Slices)
		templates := map[any]bool{}
		for _, p := range slim.Slices {
			templates[p.Shape] = true
		}
		shared += len(slim.Slices) - len(templates)
		o := why.Options{Driver: slicetest.Driver, Now: time.Now(), Limit: time.Minute, Devices: true}
		want := why.Ask(context.Background(), &whole, why.Subject{Claim: asked.DeepCopy()}, o)
		got := why.Ask(context.Background(), &slim, why.Subject{Claim: asked.DeepCopy()}, o)
		results[want.Result]++
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d: (-whole slices, +packed slices)\n%s", seed, diff)
		}
		if strings.Contains(want.Summary, "undecided") {
			t.Fatalf("seed %d: %s", seed, want.Summary)
		}
	}
	t.Log(results, shared)
	if !testing.Short() && (results[why.Fits] == 0 || results[why.Waits] == 0 || shared == 0) {
		t.Errorf("the fleets show only %v; %d slices share a Shape", results, shared)
	}
}
