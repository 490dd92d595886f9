// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"maps"
	"slices"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/gpu/health/watcher"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/show/metrics"
)

// XIDOptions configures the handling of XIDs; all fields but Ignore are required.
type XIDOptions struct {
	Watcher *watcher.Watcher
	Library nvml.Library
	// ProcRoot and SysRoot are the machine's /proc and /sys.
	ProcRoot, SysRoot string
	// Event adds an XID to the GPU's faults.
	Event func(g gpu.GPU, code uint64)
	// Refused notes whether the driver refuses to deliver XIDs of a GPU.
	Refused func(g gpu.GPU, refused bool)
	// Ignore lists XIDs that are only counted.
	Ignore []uint64
}

// xids counts XIDs, adds them to the faults and reports them to pods.
type xids struct {
	engine  *devicestate.Engine
	reports *reporting.XIDs
	metrics *metrics.Metrics
	o       XIDOptions
	poll    func()
}

func newXIDs(engine *devicestate.Engine, reports *reporting.XIDs, m *metrics.Metrics, o Options) *xids {
	return &xids{engine: engine, reports: reports, metrics: m, o: o.XIDs, poll: o.Inventory.Trigger}
}

func (x *xids) watch(ctx context.Context) {
	x.o.Watcher.Run(ctx, watcher.Options{
		Library: x.o.Library, ProcRoot: x.o.ProcRoot, SysRoot: x.o.SysRoot, GPUs: x.gpus, Event: x.event, Refused: x.o.Refused, Poll: x.poll,
	})
}

// gpus returns the GPUs of prepared claims, as far as they are known.
func (x *xids) gpus() []string {
	plans, _, _ := x.engine.Held() // The engine reports unreadable records.
	held := map[string]bool{}
	for _, p := range plans {
		for _, address := range p.HeldGPUs() {
			held[address] = true
		}
	}
	return slices.Sorted(maps.Keys(held))
}

func (x *xids) event(e watcher.Event) {
	x.metrics.XID(e.GPU.UUID, health.XIDOf(e.XID))
	x.o.Event(e.GPU, e.XID)
	if !slices.Contains(x.o.Ignore, e.XID) {
		x.reports.Notify(e)
	}
}
