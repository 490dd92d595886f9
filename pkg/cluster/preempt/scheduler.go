// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

const (
	// gate is the scheduler's feature gate for preemption by devices. KEP-5690 proposes the name, and no tag of
	// Kubernetes has it yet.
	gate = "DRAPreemption"
	// gateFor is the time for which an answer about the gate holds.
	gateFor = time.Hour
)

// yields reports whether the scheduler itself evicts pods for those that wait for devices. The metrics of the API
// server have its gates, which are set like the scheduler's. Without an answer, the last one holds.
func (k *Keeper) yields(ctx context.Context, now time.Time) bool {
	if k.o.Metrics == nil || now.Sub(k.read) < gateFor {
		return k.enabled
	}
	k.read = now
	enabled, err := k.readGate(ctx)
	if logger := klog.FromContext(ctx); err != nil {
		logger.Error(err, "Cannot read whether the scheduler preempts for devices; asking again in an hour", "gate",
			gate)
	} else if enabled != k.enabled {
		k.enabled = enabled
		logger.Info("The scheduler's feature gate for preemption by devices has changed: while it is on, this driver "+
			"evicts no pods", "gate", gate, "enabled", enabled)
	}
	return k.enabled
}

func (k *Keeper) readGate(ctx context.Context) (enabled bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	body, err := k.o.Metrics.Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return false, fmt.Errorf("read the metrics of the API server: %w", err)
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	err = errors.New("the metrics of the API server have no feature gates")
	for lines.Scan() {
		if name, found := strings.CutPrefix(lines.Text(), `kubernetes_feature_enabled{name="`); found {
			err = nil
			enabled = enabled || strings.HasPrefix(name, gate+`"`) && strings.HasSuffix(name, "} 1")
		}
	}
	return enabled, cmp.Or(lines.Err(), err)
}
