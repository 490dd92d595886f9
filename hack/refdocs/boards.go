// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/nodetemplate"
)

// boardsPage lists the catalogue of boards with the devices that a new node with each of them publishes.
func boardsPage() (string, error) {
	var b strings.Builder
	b.WriteString(notice + "# Boards\n\n" +
		"A new node with one of these boards publishes these devices with `publish: []`. The simulator has these boards. " +
		"`kubectl gpu slices --board NAME` prints the slices, and `kubectl gpu why --board NAME -f FILE` judges a manifest by them.\n\n" +
		"Partitions are counted for one GPU: the number of placements of each profile. A GPU before Hopper has none here, because its MIG mode " +
		"changes with a reset only. The devices include one monitor device for each GPU.\n\n" +
		"| board | GPUs | memory of a GPU | partitions | groups | devices | slices |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, name := range nodetemplate.Boards() {
		t, err := nodetemplate.FromBoard(name, "gpu.nvidia.com", "node")
		if err != nil {
			return "", err
		}
		cells := boardRow(t)
		row(&b, append([]string{"`" + name + "`"}, cells...)...)
	}
	return b.String(), nil
}

func boardRow(t nodetemplate.Template) []string {
	models, profiles, groups := map[string]int{}, map[string]int{}, map[int64]int{}
	memory, parent, devices := "", "", 0
	for _, s := range t.Slices {
		devices += len(s.Spec.Devices)
		for _, d := range s.Spec.Devices {
			switch gpu.Kind(*d.Attributes["type"].StringValue) {
			case gpu.KindGPU:
				models[*d.Attributes["productName"].StringValue]++
				value := d.Capacity["memory"].Value
				memory = value.String()
			case gpu.KindGroup:
				groups[*d.Attributes["gpuCount"].IntValue]++
			case gpu.KindMIG:
				if parent == "" {
					parent = *d.Attributes["parentUUID"].StringValue
				}
				if *d.Attributes["parentUUID"].StringValue == parent {
					profiles[*d.Attributes["profile"].StringValue]++
				}
			}
		}
	}
	return []string{
		list(models, func(model string, n int) string { return fmt.Sprintf("%d × %s", n, model) }), memory,
		list(profiles, func(profile string, n int) string { return fmt.Sprintf("%d of `%s`", n, profile) }),
		list(groups, func(size int64, n int) string { return fmt.Sprintf("%d of %d GPUs", n, size) }),
		strconv.Itoa(devices), strconv.Itoa(len(t.Slices)),
	}
}

func list[K string | int64](counts map[K]int, text func(K, int) string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, text(k, counts[k]))
	}
	return strings.Join(out, ", ")
}
