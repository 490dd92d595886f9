// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"errors"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

// incomplete is a driver with an answer.
type incomplete struct{ err error }

func (d *incomplete) Common(context.Context) (specs.ContainerEdits, error) {
	return specs.ContainerEdits{}, d.err
}

// TestNode_DriverNotReady_TaintsGPUs publishes GPUs of a node whose containers cannot use them.
func TestNode_DriverNotReady_TaintsGPUs(t *testing.T) {
	var reports []error
	driver := &incomplete{errors.New("no nvidia-uvm; run modprobe nvidia-uvm")}
	changed := notify.NewTrigger()
	r := NewReadiness(driver, notifytest.Reporter(func(err error) { reports = append(reports, err) }), changed)
	n := newNode(t, NodeOptions{Readiness: r})
	if err := n.Found(t.Context(), gpu.Snapshot{
		Driver: gpu.Driver{Version: "580.126.09"},
		GPUs:   []gpu.GPU{{PCIAddress: "0000:1b:00.0", UUID: "GPU-1", MemoryBytes: 80 << 30}},
	}, nil); err != nil {
		t.Fatal(err)
	}
	taints := func() (values []string, built bool) {
		slices, built := n.build(features{taints: true})
		for _, s := range slices {
			for _, d := range s.Devices {
				for _, taint := range d.Taints {
					if taint.Key == wire.UnhealthyTaint {
						values = append(values, taint.Value)
					}
				}
			}
		}
		return values, built
	}
	if _, built := taints(); built {
		t.Error("the GPU is published before the driver is checked")
	}
	check := func(err error, want string, wantReports int) {
		t.Helper()
		driver.err = err
		r.check(t.Context())
		r.check(t.Context())
		values, built := taints()
		if got := strings.Join(values, " "); !built || got != want || len(reports) != wantReports {
			t.Errorf("%v: taints %q (%t), %d reports", err, got, built, len(reports))
		}
	}
	check(driver.err, "not-ready", 1)
	check(nil, "", 1)
	check(driverroot.ErrDriverNotLoaded, "", 1)
	check(driverroot.ErrIncomplete, "not-ready", 2)
	if text := reports[0].Error(); !strings.Contains(text, "run modprobe nvidia-uvm") || !strings.Contains(text, "not-ready") {
		t.Error(text)
	}
}
