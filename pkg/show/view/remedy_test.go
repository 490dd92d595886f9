// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/wire"
)

func TestRemedies_Conditions_NameCommandsOfTheGPU(t *testing.T) {
	published := []PublishedDevice{{Name: "gpu-0000-1b-00-0"}}
	for name, c := range map[string]struct {
		change   func(*GPU)
		free     bool
		causes   string
		commands []string
	}{
		"free":     {change: func(*GPU) {}, free: true},
		"reset":    {func(g *GPU) { g.Health = "reset" }, false, "unhealthy: reset: the driver asks for a reset", []string{"nvidia-smi -r -i 0000:1b:00.0"}},
		"lost":     {func(g *GPU) { g.Health = "lost" }, false, "fallen off the bus", []string{"kubectl drain n1 --ignore-daemonsets --delete-emptydir-data"}},
		"unlisted": {func(g *GPU) { g.Health = "row-remap" }, false, "unhealthy: row-remap", nil},
		"cordoned": {func(g *GPU) {
			g.Taints = []resourceapi.DeviceTaint{{Key: wire.CordonTaint, Effect: "NoSchedule"}}
		}, false, "cordoned by an administrator", []string{"kubectl gpu uncordon n1/gpu-0000-1b-00-0"}},
		"reserved": {func(g *GPU) {
			g.Taints = []resourceapi.DeviceTaint{{Key: wire.ReservedTaint, Effect: "NoSchedule"}}
		}, false, "reserved", nil},
		"rule": {func(g *GPU) {
			g.Taints, g.Rules = []resourceapi.DeviceTaint{{Key: "example.com/burn-in", Effect: "NoSchedule"}}, []string{"burn-in"}
		}, false, "the DeviceTaintRule burn-in taints it", []string{"kubectl delete devicetaintrule burn-in"}},
		"in no slice": {func(g *GPU) { g.Devices = nil }, false, "health is unknown", []string{"kubectl gpu doctor n1"}},
		"half a pool": {func(g *GPU) { g.Incomplete = true }, false, "slices of its node are missing", []string{"kubectl gpu doctor n1"}},
		"unpublished": {func(g *GPU) { g.Devices, g.Use = nil, Unpublished }, false, "no slice publishes it", []string{"kubectl gpu doctor n1"}},
		"two": {func(g *GPU) {
			g.Health, g.Taints = "drain-reset", []resourceapi.DeviceTaint{{Key: wire.CordonTaint, Effect: "NoExecute"}}
		}, false, "after its work has ended; cordoned", []string{"nvidia-smi -r -i 0000:1b:00.0", "kubectl gpu uncordon n1/gpu-0000-1b-00-0"}},
		"held": {change: func(g *GPU) { g.Use = Whole }},
	} {
		t.Run(name, func(t *testing.T) {
			g := GPU{Node: "n1", Name: "gpu-0000-1b-00-0", PCIAddress: "0000:1b:00.0", Use: Free, Devices: published}
			c.change(&g)
			var causes, commands []string
			for _, r := range g.Remedies() {
				causes, commands = append(causes, r.Cause), append(commands, r.Commands...)
				if r.Text == "" || strings.HasSuffix(r.Text, ".") {
					t.Errorf("the remedy is %q", r.Text)
				}
			}
			if !strings.Contains(strings.Join(causes, "; "), c.causes) || (len(causes) == 0) != (c.causes == "") {
				t.Errorf("causes %q, want %q", causes, c.causes)
			}
			if diff := cmp.Diff(c.commands, commands); diff != "" {
				t.Errorf("commands (-want +got):\n%s", diff)
			}
			if g.Available() != c.free {
				t.Errorf("available: %v", g.Available())
			}
		})
	}
}
