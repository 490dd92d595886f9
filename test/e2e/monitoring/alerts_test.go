//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// checkAlerts injects faults and ends them, XIDs on a GPU with a claim: others have no watcher. The rules are the chart's,
// with their durations.
func (n *node) checkAlerts(ctx context.Context, t *testing.T) {
	faults := []struct {
		alert      string
		fault, end []string
	}{
		{"GPULost", []string{"lose"}, []string{"restore"}},
		{"GPUNeedsReset", []string{"recovery", "reset"}, []string{"recovery", "none"}},
		{"GPUNeedsReboot", []string{"recovery", "reboot"}, []string{"recovery", "none"}},
		{"GPUMemoryWorn", []string{"remap", "failed"}, nil}, // It ends with the board.
	}
	// wait waits until a number of alerts fires for a GPU, and tries again to reach it.
	wait := func(alert, uuid string, want int, try func()) {
		t.Helper()
		query := fmt.Sprintf(`ALERTS{alertname=%q, alertstate="firing", uuid=%q}`, alert, uuid)
		must(t, n.Eventually(ctx, fmt.Sprint(alert, ": firing alerts: ", want), 8*time.Minute, func(ctx context.Context) (bool, string) {
			try()
			found, err := n.query(ctx, query)
			return err == nil && len(found) == want, fmt.Sprint(found, err)
		}))
	}
	nothing := func() {}
	// These two last longer than the test. An XID can come before the plugin listens.
	xids := n.busy.UUID
	wait("GPUXIDStorm", xids, 1, func() { n.inject(ctx, t, "xid", "31", xids) })
	wait("NVLinkErrors", xids, 1, func() { n.inject(ctx, t, "xid", "74", xids) })
	for i, f := range faults {
		n.inject(ctx, t, append(f.fault, n.free[i].UUID)...)
	}
	for i, f := range faults {
		wait(f.alert, n.free[i].UUID, 1, nothing)
	}
	for i, f := range faults {
		if f.end != nil {
			n.inject(ctx, t, append(f.end, n.free[i].UUID)...)
		}
	}
	for i, f := range faults {
		if f.end != nil {
			wait(f.alert, n.free[i].UUID, 0, nothing)
		}
	}
}
