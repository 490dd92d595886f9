// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"testing"
	"time"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/sim/engine"
)

func TestLostPartitions_OneGPUHangs_ReportsOthers(t *testing.T) {
	e, machine := env.New(t), devicestatetest.NewSimulated(t, "hgx-h100")
	machine.Configure = func(o *devicestate.Options) { o.WorkLimit = 200 * time.Millisecond }
	p, err := machine.StartWith(nil)
	machine.Must(err)
	t.Cleanup(p.Crash)
	for uid, device := range map[string]string{"a": "0 1g.10gb 4", "b": "1 1g.10gb 4"} {
		machine.Claim(uid, device)
		machine.Prepare(p, uid)
	}
	machine.Sim.Change(func(s *engine.State) {
		s.Vanish(&s.GPUs[0], 4)
		s.Vanish(&s.GPUs[1], 4)
	})
	machine.Sim.NVML.Hang(nvmltest.On(machine.Sim.State().GPUs[0].UUID))
	t.Cleanup(func() { machine.Sim.NVML.Clear() })

	plans, _, err := p.Held()
	machine.Must(err)
	var missing []Missing
	for _, held := range plans {
		missing = append(missing, Missing{Plan: held, Devices: []string{held.Devices[0].Name}})
	}
	scans := notify.NewNewest[[]Missing]()
	lost := NewLostPartitions(NewClaims(p.Engine, &devicestatetest.APIServer{Env: machine}, newEvents(e), newStatus(e), e.Metrics), scans)
	e.Go(lost.Run)
	scans.Put(missing)
	e.Event("ResourceClaim", "claim-b", "DeviceNotReady")
	machine.Sim.NVML.Clear()
	// No later scan differs.
	e.Event("ResourceClaim", "claim-a", "DeviceNotReady")
}
