//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"gpu-dra-driver/test/e2e/env"
)

// wait waits until the alerts that fire with some labels are none, or some, and calls try until then.
func (n *node) wait(ctx context.Context, t *testing.T, alert, labels string, fires bool, try func()) {
	t.Helper()
	query := fmt.Sprintf(`ALERTS{alertname=%q, alertstate="firing", %s}`, alert, labels)
	must(t, n.Eventually(ctx, fmt.Sprint(alert, " fires: ", fires), 10*time.Minute, func(ctx context.Context) (bool, string) {
		if try != nil {
			try()
		}
		found, err := n.query(ctx, query)
		return err == nil && len(found) > 0 == fires, fmt.Sprint(found, err)
	}))
}

func of(uuid string) string { return fmt.Sprintf("uuid=%q", uuid) }

// checkAlerts injects faults and ends them. The rules are the chart's, with periods of at most a minute.
func (n *node) checkAlerts(ctx context.Context, t *testing.T) {
	faults := []struct {
		alert, uuid string
		fault, end  []string
	}{
		{"GPULost", n.free[0].UUID, []string{"lose"}, []string{"restore"}},
		{"GPUNeedsReset", n.free[1].UUID, []string{"recovery", "reset"}, []string{"recovery", "none"}},
		{"GPUNeedsReboot", n.free[2].UUID, []string{"recovery", "reboot"}, []string{"recovery", "none"}},
		{"GPUMemoryWorn", n.free[3].UUID, []string{"remap", "failed"}, nil}, // It ends with the board.
		{"GPUPCIeDegraded", n.busy.UUID, []string{"pcie-width", "4"}, nil},  // It ends after an hour, or with the plugin.
		{"GPUThrottled", n.busy.UUID, []string{"throttle", "thermal"}, []string{"throttle", "none"}},
	}
	for _, f := range faults {
		n.inject(ctx, t, append(f.fault, f.uuid)...)
	}
	// XIDs count on a GPU with a claim: others have no watcher. One can come before the plugin listens.
	n.wait(ctx, t, "GPUXIDStorm", of(n.busy.UUID), true, func() { n.inject(ctx, t, "xid", "31", n.busy.UUID) })
	n.wait(ctx, t, "NVLinkErrors", of(n.busy.UUID), true, func() { n.inject(ctx, t, "xid", "74", n.busy.UUID) })
	n.wait(ctx, t, "GPUXIDStorm", of(n.busy.UUID), false, nil)
	n.wait(ctx, t, "NVLinkErrors", of(n.busy.UUID), false, nil)
	for _, f := range faults {
		n.wait(ctx, t, f.alert, of(f.uuid), true, nil)
	}
	n.faulty = time.Now()
	n.inject(ctx, t, "pcie-width", "16", n.busy.UUID)
	for _, f := range faults {
		if f.end != nil {
			n.inject(ctx, t, append(f.end, f.uuid)...)
		}
	}
	for _, f := range faults {
		if f.end != nil {
			n.wait(ctx, t, f.alert, of(f.uuid), false, nil)
		}
	}
}

// refuseSlices makes the API server refuse the driver's slices, and changes them. PublishStale has not fired before.
func (n *node) refuseSlices(ctx context.Context, t *testing.T) {
	before, err := n.query(ctx, `last_over_time(ALERTS{alertname="PublishStale", alertstate="firing"}[1h])`)
	must(t, err)
	if len(before) > 0 {
		t.Errorf("PublishStale fired while publishing worked: %v", before)
	}
	_, err = n.Kubectl(ctx, "apply", "-f", n.refusal())
	must(t, err)
	must(t, n.Eventually(ctx, "slices are refused", time.Minute, func(ctx context.Context) (bool, string) {
		out, err := n.Kubectl(ctx, "annotate", "resourceslices", "--all", "test=refused", "--dry-run=server")
		return err != nil, out
	}))
	n.inject(ctx, t, "recovery", "reset", n.free[1].UUID)
	must(t, n.Eventually(ctx, "publishing fails", 2*time.Minute, func(ctx context.Context) (bool, string) {
		failed, err := n.query(ctx, `gpu_dra_publish_errors_total{reason="Failed"}`)
		return err == nil && len(failed) > 0, fmt.Sprint(failed, err)
	}))
}

func (n *node) refusal() string {
	return filepath.Join(n.Tree, "test", "e2e", "monitoring", "testdata", "refused.yaml")
}

// checkPublishAlert waits for the effect of refuseSlices, and ends it.
func (n *node) checkPublishAlert(ctx context.Context, t *testing.T) {
	n.wait(ctx, t, "PublishStale", `instance=~".+"`, true, nil)
	_, err := n.Kubectl(ctx, "delete", "-f", n.refusal())
	must(t, err)
	n.wait(ctx, t, "PublishStale", `instance=~".+"`, false, nil)
	n.inject(ctx, t, "recovery", "none", n.free[1].UUID)
}

// checkClaimAlerts ends a claim that does nothing, and one that waits. Then the GPU of the first is free, and leaves the bus.
func (n *node) checkClaimAlerts(ctx context.Context, t *testing.T) {
	const idle, pending = `namespace="team-a", claim=~"idle-.*"`, `phase="pending"`
	n.wait(ctx, t, "ClaimIdle", idle, true, nil)
	n.wait(ctx, t, "ClaimPendingLong", pending, true, nil)
	_, err := n.Kubectl(ctx, "delete", "-n", "team-a", "pod/idle", "pod/waits")
	must(t, err)
	n.wait(ctx, t, "ClaimIdle", idle, false, nil)
	n.wait(ctx, t, "ClaimPendingLong", pending, false, nil)
	n.inject(ctx, t, "remove", n.idle.UUID)
	n.wait(ctx, t, "GPUUnhealthy", of(n.idle.UUID), true, nil)
	n.inject(ctx, t, "add", n.idle.UUID)
	n.wait(ctx, t, "GPUUnhealthy", of(n.idle.UUID), false, nil)
}

// checkPluginAlert replaces the plugin by one that never starts, and by none.
func (n *node) checkPluginAlert(ctx context.Context, t *testing.T) {
	const plugin = "daemonset/" + env.Release + "-kubelet-plugin"
	// With the chart's settings the old pod stays until the new one is ready.
	_, err := n.Kubectl(ctx, "-n", env.Namespace, "patch", plugin, "--patch", `{"spec": {"updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}}`)
	must(t, err)
	for _, c := range []struct{ labels, change string }{
		{`node=""`, `{"spec": {"template": {"spec": {"containers": [{"name": "gpus", "command": ["/missing"]}]}}}}`},
		{`node!=""`, `{"spec": {"template": {"spec": {"nodeSelector": {"no-such-label": "here"}}}}}`},
	} {
		_, err := n.Kubectl(ctx, "-n", env.Namespace, "patch", plugin, "--patch", c.change)
		must(t, err)
		n.wait(ctx, t, "PluginDown", c.labels, true, nil)
		_, err = n.Kubectl(ctx, "-n", env.Namespace, "rollout", "undo", plugin)
		must(t, err)
		n.wait(ctx, t, "PluginDown", `instance=~".+"`, false, nil)
	}
	n.wait(ctx, t, "GPUPCIeDegraded", of(n.busy.UUID), false, nil)
}
