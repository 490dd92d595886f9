// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/profiles"
)

// dcgmRules are the string attributes that dcgm-exporter 4.6.0 and later need to find the samples of an allocated device,
// by the device's type. The first one must be the UUID of the board. The exporter ignores other types.
var dcgmRules = map[string][]resourceapi.QualifiedName{
	"gpu": {"uuid"},
	"mig": {"parentUUID", "profile", "uuid"},
}

// dcgmDevices are the kinds of published devices. The values are the reasons why dcgm-exporter does not map them, empty for
// those that it maps. docs/metrics.md has a row for each.
var dcgmDevices = map[string]string{
	"whole GPU":                     "",
	"partition of an administrator": "",
	"partition made for its claim":  "it has no UUID while its slice is published",
	"nvlink-group":                  "the exporter does not know the type, and reads one UUID for each device",
	"monitor":                       "the exporter does not know the type, and the claim does not use the GPU",
}

func TestBuild_SimulatedBoards_FollowRulesOfDCGMExporter(t *testing.T) {
	seen := map[string]int{}
	for _, profile := range profiles.Names() {
		snapshot, err := slicetest.Scan(profile, profile, 0)
		if err != nil {
			t.Fatal(err)
		}
		partitioned := snapshot
		partitioned.GPUs = slices.Clone(snapshot.GPUs)
		for n := range partitioned.GPUs {
			addPartition(&partitioned.GPUs[n])
		}
		for _, s := range []gpu.Snapshot{snapshot, partitioned} {
			published := slicetest.Slices(s, "n1", sharing.Settings{})
			boards := map[string]gpu.GPU{}
			for _, g := range s.GPUs {
				boards[g.PCIAddress] = g
			}
			for _, slice := range published {
				if slice.Spec.Driver != "gpu.nvidia.com" {
					t.Errorf("%s: the exporter ignores the driver %s", slice.Name, slice.Spec.Driver)
				}
				for _, d := range slice.Spec.Devices {
					name, err := gpu.ParseName(d.Name)
					if err != nil {
						t.Fatal(err)
					}
					g := boards[name.PCIAddress]
					kind := dcgmKind(name, g)
					seen[kind]++
					board, partition, ok := mapAsDCGM(d)
					if reason := dcgmDevices[kind]; ok != (reason == "") {
						t.Errorf("%s of %s: the exporter maps this %s: %v, listed reason against it: %q", d.Name, profile, kind, ok, reason)
					}
					if ok && (board != g.UUID || partition != "" && partition != g.MIG.Partitions[0].Devices[0].UUID) {
						t.Errorf("%s of %s: the exporter maps it to %s %s", d.Name, profile, board, partition)
					}
				}
			}
		}
	}
	docs, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(docs), "`", "")
	for kind, reason := range dcgmDevices {
		if seen[kind] == 0 {
			t.Errorf("no simulated board has a %s", kind)
		}
		_, row, ok := strings.Cut(text, "\n| "+kind+" | ")
		if !ok || strings.HasPrefix(row, "none") != (reason != "") {
			t.Errorf("docs/metrics.md: the row of %s does not agree with this test", kind)
		}
	}
}

// mapAsDCGM returns the UUIDs of the board and the partition to which dcgm-exporter maps a device.
func mapAsDCGM(d resourceapi.Device) (board, partition string, ok bool) {
	text := func(a resourceapi.QualifiedName) string { return ptr.Deref(d.Attributes[a].StringValue, "") }
	needs, ok := dcgmRules[text("type")]
	if !ok || slices.ContainsFunc(needs, func(a resourceapi.QualifiedName) bool { return text(a) == "" }) {
		return "", "", false
	}
	if text("type") == "mig" {
		partition = text("uuid")
	}
	return text(needs[0]), partition, true
}

func dcgmKind(d gpu.Device, g gpu.GPU) string {
	switch d.Kind {
	case gpu.KindGPU:
		return "whole GPU"
	case gpu.KindMIG:
		for _, p := range g.MIG.Partitions {
			if p.Profile == d.Profile && p.Placement.Start == d.Start {
				return "partition of an administrator"
			}
		}
		return "partition made for its claim"
	}
	return string(d.Kind)
}

// addPartition adds a partition of the first profile, if the GPU has profiles.
func addPartition(g *gpu.GPU) {
	if len(g.MIG.Profiles) == 0 {
		return
	}
	p := g.MIG.Profiles[0]
	g.MIG.Enabled, g.MIG.Pending = true, true
	g.MIG.Partitions = []gpu.Partition{{Profile: p.Name, Placement: p.Placements[0], Devices: []gpu.PartitionDevice{{UUID: "MIG-of-" + g.UUID}}}}
}
