// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/slicetest"
)

// BenchmarkRefresh_Claim is the time until a new claim is in the feed of 5,000 nodes, of which claims have most GPUs.
func BenchmarkRefresh_Claim(b *testing.B) {
	const nodes, busy = 5000, 5
	c := newTestCluster()
	template, err := slicetest.Node("dgx-1-v100", "template", 0)
	if err != nil {
		b.Fatal(err)
	}
	var boards []string
	for _, s := range template {
		for _, d := range s.Spec.Devices {
			if kind := d.Attributes["type"].StringValue; kind != nil && *kind == "gpu" {
				boards = append(boards, d.Name)
			}
		}
	}
	claim := func(node, gpu int) *resourceapi.ResourceClaim {
		return heldClaim(fmt.Sprintf("train-%d-%d", node, gpu), held(fmt.Sprintf("node-%d/gpu", node), boards[gpu]))
	}
	for n := range nodes {
		name := fmt.Sprint("node-", n)
		for _, s := range template {
			s = s.DeepCopy()
			s.Name = strings.Replace(s.Name, "template", name, 1)
			s.Spec.NodeName, s.Spec.Pool.Name = &name, strings.Replace(s.Spec.Pool.Name, "template", name, 1)
			c.Put(s, false)
		}
		for gpu := range busy {
			c.Put(claim(n, gpu), false)
		}
	}
	c.Done(Slices)
	c.Done(Claims)
	if err := c.refresh(); err != nil {
		b.Fatal(err)
	}
	at := 0
	for b.Loop() {
		c.Put(claim(at, busy), false)
		before := c.feed.version
		if err := c.refresh(); err != nil || c.feed.version == before {
			b.Fatalf("version %d after %d: %v", c.feed.version, before, err)
		}
		at++
	}
	if len(c.shown) != nodes {
		b.Errorf("%d nodes are shown", len(c.shown))
	}
}
