// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"runtime"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
)

// TestSamplesAdd_SlicesChange_EarlierAdditionsAreForgotten has a node whose slices change again and again.
func TestSamplesAdd_SlicesChange_EarlierAdditionsAreForgotten(t *testing.T) {
	settings, _, err := sharing.Parse([]byte("publish: [{profiles: Auto, groups: None}]"))
	if err != nil {
		t.Fatal(err)
	}
	scanned, err := slicetest.Scan("hgx-h100", "n", 1)
	if err != nil {
		t.Fatal(err)
	}
	published := slicetest.Slices(scanned, "n", settings)
	at := func(change string) Pool {
		s := published[0].DeepCopy()
		s.Spec.Devices[0].ConsumesCounters = nil
		s.Spec.Devices[0].Attributes["machine"] = resourceapi.DeviceAttribute{StringValue: &change}
		s.Spec.Pool.ResourceSliceCount = 1
		return Of([]*Slice{Unshared(s)})
	}
	var all []*Slice
	for _, s := range published {
		all = append(all, Unshared(s))
	}
	x := NewSamples()
	x.Learn(Of(all))
	var last Pool
	for i := range 100 {
		if last = x.Add(at(fmt.Sprint(i))); len(last.Slices) != 3 {
			t.Fatalf("%d slices, want the published one, counters and partitions", len(last.Slices))
		}
	}
	left := func() int {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.added)
	}
	for range 100 {
		// Cleanups run on their own after a collection. Once that of a marker has run, those of earlier ones soon have.
		ran := make(chan struct{})
		runtime.AddCleanup(new([64]byte), func(ran chan struct{}) { close(ran) }, ran)
		runtime.GC()
		<-ran
		if left() <= 1 {
			break
		}
	}
	if n := left(); n > 1 {
		t.Errorf("%d additions stay", n)
	}
	runtime.KeepAlive(last)
}

// TestLayouts_MoreThanARealNodeHas_AreIgnored has a node that names a layout for each of its GPUs.
func TestLayouts_MoreThanARealNodeHas_AreIgnored(t *testing.T) {
	published, err := slicetest.Node("hgx-h100", "n", 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{maxOfNode, maxOfNode + 1} {
		s := published[0].DeepCopy()
		first := s.Spec.Devices[0]
		s.Spec.Devices = nil
		for i := range n {
			d := *first.DeepCopy()
			name := fmt.Sprint("layout-", i)
			d.Attributes["migLayout"] = resourceapi.DeviceAttribute{StringValue: &name}
			s.Spec.Devices = append(s.Spec.Devices, d)
		}
		if got := len(Of([]*Slice{Unshared(s)}).Layouts()); (got == n) != (n <= maxOfNode) {
			t.Errorf("%d of %d layouts count", got, n)
		}
	}
}
