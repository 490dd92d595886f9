// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"syscall"
	"testing"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/internal/nvml/native"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/health/tracker"
	"gpu-dra-driver/sim/simtest"
)

// scanSeconds is the time between two scans of a node whose files do not change.
const scanSeconds = 30

// BenchmarkScan_EightGPUs scans and polls the health through the C ABI. It reports the part of a core that this costs; the
// budget is 1 %.
func BenchmarkScan_EightGPUs(b *testing.B) {
	r := simtest.Root(b, "hgx-h100", nil)
	r.Use(b)
	library := native.New(r.Path)
	// As the watcher of XIDs does while claims are prepared.
	session, err := library.Open()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	h := host.New(host.Options{})
	dir := b.TempDir()
	records, err := record.OpenGPUs(h, dir, tracker.Setting)
	if err != nil {
		b.Fatal(err)
	}
	i := inventory.New(inventory.Options{
		Library: library, ProcRoot: r.Path + "/proc", SysRoot: r.Path + "/sys", DevRoot: r.Path,
		Health: tracker.New(h, records, dir+"/lock", notifytest.Reporter(func(err error) { b.Error(err) }), health.Settings{}),
	})
	before := cpuSeconds(b)
	for b.Loop() {
		if s, err := i.Scan(b.Context()); err != nil || len(s.GPUs) != 8 || s.GPUs[7].Unmonitored != "" {
			b.Fatal(s, err)
		}
	}
	b.ReportMetric(100*(cpuSeconds(b)-before)/float64(b.N)/scanSeconds, "%core")
}

func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
