// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"slices"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/health/tracker"
	"gpu-dra-driver/pkg/node/health/watcher"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/node/metrics"
)

// XIDOptions configures the handling of XIDs; all fields but Ignore are required.
type XIDOptions struct {
	Library nvml.Library
	// ProcRoot and SysRoot are the machine's /proc and /sys.
	ProcRoot, SysRoot string
	// Locks are shared with the executors.
	Locks *watcher.Locks
	// Health has the faults of GPUs.
	Health *tracker.Tracker
	// Polls requests the polls that follow an XID.
	Polls notify.Trigger
	// Ignore lists XIDs that are only counted.
	Ignore []uint64
}

// xids counts XIDs, adds them to the faults and reports them to pods.
type xids struct {
	reports *reporting.XIDs
	metrics *metrics.Metrics
	health  *tracker.Tracker
	ignore  []uint64
}

// Event implements watcher.Receiver.
func (x *xids) Event(e watcher.Event) {
	x.metrics.XID(e.GPU.UUID, health.XIDOf(e.XID))
	x.health.Event(e.GPU, e.XID)
	if !slices.Contains(x.ignore, e.XID) {
		x.reports.Notify(e)
	}
}

// Refused implements watcher.Receiver.
func (x *xids) Refused(g gpu.GPU, refused bool) { x.health.Refused(g, refused) }
