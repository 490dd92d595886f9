// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"fmt"
	"net/http/httptest"
	"syscall"
	"testing"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/sampler"
)

// BenchmarkScrape_200Claims serves eight GPUs with 200 claims, and reports the processor time of a scrape. The budget is 10 ms.
func BenchmarkScrape_200Claims(b *testing.B) {
	var plans []plan.Plan
	users := map[string][]User{}
	for n := range 200 {
		g := fmt.Sprint("gpu-", n%8)
		p := plan.Plan{Claim: plan.Claim{Namespace: "ns", Name: fmt.Sprint("c", n), UID: fmt.Sprint("u", n)},
			Devices: []plan.Device{{Request: "r", Name: g, UUID: g, Kind: gpu.KindGPU, Share: plan.Share{MemoryBytes: 1}}}}
		plans = append(plans, p)
		users[p.Claim.UID+"-"+g] = []User{{"p", "c"}}
	}
	var s sampler.Snapshot
	for n := range 8 {
		g := measured(fmt.Sprint("gpu-", n)).GPUs[0]
		g.Name = g.UUID
		s.GPUs = append(s.GPUs, g)
	}
	m := New(Options{Driver: "d", Node: "n"})
	m.CollectRecords(fakeRecords{plans: plans}, func(context.Context) (map[string][]User, error) { return users, nil },
		func() sampler.Snapshot { return s })
	r := httptest.NewRequest("GET", "/metrics", nil)
	before := cpuMilliseconds(b)
	for b.Loop() {
		w := httptest.NewRecorder()
		if m.Handler().ServeHTTP(w, r); w.Code != 200 {
			b.Fatal(w.Body)
		}
	}
	b.ReportMetric((cpuMilliseconds(b)-before)/float64(b.N), "cpu-ms")
}

func cpuMilliseconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e6
}
