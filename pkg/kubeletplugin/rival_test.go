// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/metrics"
)

var three = gpu.Snapshot{Driver: gpu.Driver{Version: "580.126.09"}, GPUs: []gpu.GPU{
	{PCIAddress: "0000:10:00.0", UUID: "GPU-a", Index: 0},
	{PCIAddress: "0000:11:00.0", UUID: "GPU-b", Index: 1, MIG: gpu.MIG{Partitions: []gpu.Partition{{Devices: []gpu.PartitionDevice{{UUID: "MIG-1"}}}}}},
	{PCIAddress: "0000:12:00.0", UUID: "GPU-c", Index: 2},
}}

func TestWhichGPUsADevicePluginServes(t *testing.T) {
	all := func(resource string) map[string]string {
		return map[string]string{"0000:10:00.0": resource, "0000:11:00.0": resource, "0000:12:00.0": resource}
	}
	for name, c := range map[string]struct {
		served Served
		want   map[string]string
	}{
		"nobody":                         {nil, map[string]string{}},
		"by UUID":                        {Served{"nvidia.com/gpu": {"GPU-a", "GPU-c"}}, map[string]string{"0000:10:00.0": "nvidia.com/gpu", "0000:12:00.0": "nvidia.com/gpu"}},
		"replicas":                       {Served{"nvidia.com/gpu.shared": {"GPU-b::0", "GPU-b::1"}}, map[string]string{"0000:11:00.0": "nvidia.com/gpu.shared"}},
		"a partition":                    {Served{"nvidia.com/mig-1g.10gb": {"MIG-1"}}, map[string]string{"0000:11:00.0": "nvidia.com/mig-1g.10gb"}},
		"by index":                       {Served{"nvidia.com/gpu": {"2", "2::1"}}, map[string]string{"0000:12:00.0": "nvidia.com/gpu"}},
		"another name of the resource":   {Served{"example.com/gpu": {"GPU-a"}}, map[string]string{"0000:10:00.0": "example.com/gpu"}},
		"a network card":                 {Served{"nvidia.com/rdma": {"0", "eth0"}}, map[string]string{}},
		"what tells nothing may be any":  {Served{"nvidia.com/gpu": {"GPU-of-old"}}, all("nvidia.com/gpu")},
		"an index that is none":          {Served{"nvidia.com/gpu": {"9"}}, all("nvidia.com/gpu")},
		"a partition that is gone":       {Served{"nvidia.com/mig-1g.10gb": {"MIG-9"}}, all("nvidia.com/mig-1g.10gb")},
		"an ID of nothing":               {Served{"nvidia.com/gpu": {""}}, all("nvidia.com/gpu")},
		"a resource that has no devices": {Served{"nvidia.com/gpu": nil}, map[string]string{}},
	} {
		if diff := cmp.Diff(c.want, c.served.gpus(three)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestWhatADevicePluginServesIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []error
		n := newNode("n", func(err error) { reports = append(reports, err) })
		n.changed, n.holder, n.asking = func() {}, holding{}, true
		if err := n.found(t.Context(), three, nil); err != nil {
			t.Fatal(err)
		}
		if _, ok := n.build(allFeatures); ok {
			t.Error("something is published before the kubelet was asked")
		}
		type answer struct {
			served Served
			err    error
		}
		answers := make(chan answer)
		ctx, stop := context.WithCancel(t.Context())
		go n.watchRivals(ctx, func(ctx context.Context) (Served, error) {
			select {
			case a := <-answers:
				return a.served, a.err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}, metrics.New(metrics.Options{}))
		published := func(a answer) (names []string) {
			answers <- a
			synctest.Wait()
			slices, ok := n.build(allFeatures)
			if !ok {
				t.Fatal("nothing is known")
			}
			for _, s := range slices {
				for _, d := range s.Devices {
					if *d.Attributes["type"].StringValue == "gpu" {
						names = append(names, d.Name)
					}
				}
			}
			return names
		}
		const a, b, c = "gpu-0000-10-00-0", "gpu-0000-11-00-0", "gpu-0000-12-00-0"
		for _, step := range []struct {
			answer answer
			want   []string
		}{
			{answer{err: errors.New("no socket")}, []string{a, b, c}},
			{answer{served: Served{"nvidia.com/gpu": {"GPU-b"}}}, []string{a, c}},
			{answer{err: errors.New("restarting")}, []string{a, c}},
			{answer{served: Served{}}, []string{a, b, c}},
		} {
			if got := published(step.answer); !slices.Equal(got, step.want) {
				t.Errorf("after %+v: %v, want %v", step.answer, got, step.want)
			}
			if said := n.rival("0000:11:00.0"); (said == "nvidia.com/gpu") != (len(step.want) == 2) {
				t.Errorf("after %+v GPU b is served as %q", step.answer, said)
			}
		}
		if len(reports) != 1 {
			t.Errorf("reports %v", reports)
		}
		stop()
	})
}
