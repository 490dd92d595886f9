//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/env"
)

// checkPod asserts from within each container of a pod that it has the device nodes of its claims' GPUs, no others,
// and the driver's files.
func checkPod(ctx context.Context, t *testing.T, p corev1.Pod) {
	t.Helper()
	claims, err := cluster.Claims(ctx, p)
	must(t, err)
	for _, c := range p.Spec.Containers {
		view, err := cluster.Inspect(ctx, p.Namespace, p.Name, c.Name)
		must(t, err)
		devices := deviceNames(p, c, claims)
		var nodes, uuids, named []string
		if slices.ContainsFunc(devices, isGroup) {
			nodes = append(nodes, nvswitchNodes(t)...)
		}
		for _, device := range expandGroups(t, devices) {
			minor, uuid := minorAndUUID(t, device)
			nodes = append(nodes, "/dev/nvidia"+strconv.Itoa(minor))
			uuids = append(uuids, uuid)
			capabilities, partition := partitionNodes(t, device)
			nodes = append(nodes, capabilities...)
			uuids = append(uuids, partition...)
			if len(partition) == 0 {
				partition = []string{uuid}
			}
			named = append(named, partition...)
		}
		if len(devices) > 0 {
			nodes = append(nodes, "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")
		}
		slices.Sort(nodes)
		slices.Sort(uuids)
		nodes, uuids = slices.Compact(nodes), slices.Compact(uuids)
		var seen []string
		for _, d := range view.Devices {
			seen = append(seen, d.Path)
			if minor, ok := strings.CutPrefix(d.Path, "/dev/nvidia-caps/nvidia-cap"); ok && (d.Type != "c" || d.Major != capsMajor(t) || strconv.Itoa(d.Minor) != minor) {
				t.Errorf("%s/%s: %s is %s %d:%d", p.Name, c.Name, d.Path, d.Type, d.Major, d.Minor)
			}
			if !d.Openable {
				t.Errorf("%s/%s cannot open %s", p.Name, c.Name, d.Path)
			}
		}
		if diff := cmp.Diff(nodes, seen); diff != "" {
			t.Errorf("%s/%s: device nodes (-want +seen):\n%s", p.Name, c.Name, diff)
		}
		got := view.UUIDs()
		slices.Sort(got)
		if diff := cmp.Diff(uuids, got); diff != "" {
			t.Errorf("%s/%s: nvidia-smi -L (-want +seen):\n%s\n%s", p.Name, c.Name, diff, view.NvidiaSMI)
		}
		var told []string
		for name, value := range view.Env {
			if strings.HasPrefix(name, "NVIDIA_DRA_UUID_") {
				told = append(told, strings.Split(value, ",")...)
			}
		}
		slices.Sort(named)
		slices.Sort(told)
		if diff := cmp.Diff(slices.Compact(named), slices.Compact(told)); diff != "" {
			t.Errorf("%s/%s: NVIDIA_DRA_UUID_… (-want +seen):\n%s\n%v", p.Name, c.Name, diff, view.Env)
		}
		checkMetadata(ctx, t, p, c, claims, view)
		if len(devices) > 0 && view.Env["NVIDIA_VISIBLE_DEVICES"] != "void" {
			t.Errorf("%s/%s: NVIDIA_VISIBLE_DEVICES is %q, want void", p.Name, c.Name, view.Env["NVIDIA_VISIBLE_DEVICES"])
		}
		if len(devices) > 0 && !slices.ContainsFunc(view.Mounts, func(m string) bool { return strings.Contains(m, "libcuda.so") }) {
			t.Errorf("%s/%s has no libcuda mounted: %v", p.Name, c.Name, view.Mounts)
		}
	}
}

// deviceNames lists the devices of a container's claims and requests.
func deviceNames(p corev1.Pod, c corev1.Container, claims []resourceapi.ResourceClaim) []string {
	var out []string
	for _, use := range usesOf(p, c, claims) {
		for _, r := range env.Results(use.claim) {
			if use.has(r) {
				out = append(out, r.Device)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// use is a container's use of a claim, or of one of its requests.
type use struct {
	claim   resourceapi.ResourceClaim
	request string
}

func (u use) has(r resourceapi.DeviceRequestAllocationResult) bool {
	base, _, _ := strings.Cut(r.Request, "/")
	return u.request == "" || u.request == base
}

// usesOf lists a container's claims and requests.
func usesOf(p corev1.Pod, c corev1.Container, claims []resourceapi.ResourceClaim) []use {
	byName := map[string]resourceapi.ResourceClaim{}
	for _, claim := range claims {
		byName[claim.Name] = claim
	}
	var out []use
	add := func(claim resourceapi.ResourceClaim, request string) { out = append(out, use{claim, request}) }
	for _, used := range c.Resources.Claims {
		for _, pc := range p.Spec.ResourceClaims {
			if pc.Name != used.Name {
				continue
			}
			if pc.ResourceClaimName != nil {
				add(byName[*pc.ResourceClaimName], used.Request)
			}
			for _, status := range p.Status.ResourceClaimStatuses {
				if status.Name == pc.Name && status.ResourceClaimName != nil && pc.ResourceClaimName == nil {
					add(byName[*status.ResourceClaimName], used.Request)
				}
			}
		}
	}
	if e := p.Status.ExtendedResourceClaimStatus; e != nil {
		for _, m := range e.RequestMappings {
			if m.ContainerName == c.Name {
				add(byName[e.ResourceClaimName], m.RequestName)
			}
		}
	}
	return out
}

func isGroup(device string) bool { return strings.HasPrefix(device, "nvlink-") }

// expandGroups replaces each group by its GPUs. They come from the simulator, which has no groups: on a board with
// switches the GPUs of a group are adjacent.
func expandGroups(t *testing.T, devices []string) []string {
	t.Helper()
	var out []string
	for _, device := range devices {
		if !isGroup(device) {
			out = append(out, device)
			continue
		}
		d, err := gpu.ParseName(device)
		must(t, err)
		state, err := engine.Open(cluster.Root, nil).State()
		must(t, err)
		first := slices.IndexFunc(state.GPUs, func(g engine.GPU) bool { return g.Address == d.PCIAddress })
		if first < 0 || first%d.Size != 0 || first+d.Size > len(state.GPUs) {
			t.Fatalf("%s begins with GPU %d of %d", device, first, len(state.GPUs))
		}
		for _, g := range state.GPUs[first : first+d.Size] {
			out = append(out, gpu.Device{Kind: gpu.KindGPU, PCIAddress: g.Address}.Name())
		}
	}
	return out
}

// nvswitchNodes lists the device nodes of the simulated board's NVSwitches.
func nvswitchNodes(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(cluster.Root, "dev/nvidia-nvswitch*"))
	must(t, err)
	if len(paths) != 5 {
		t.Errorf("the board's NVSwitches are %v", paths)
	}
	for i := range paths {
		paths[i] = filepath.Join("/dev", filepath.Base(paths[i]))
	}
	return paths
}

// minorAndUUID reads a device's minor number and UUID from the simulated /proc, which is independent of the driver.
func minorAndUUID(t *testing.T, device string) (minor int, uuid string) {
	t.Helper()
	d, err := gpu.ParseName(device)
	must(t, err)
	data, err := os.ReadFile(filepath.Join(cluster.Root, "proc", "driver", "nvidia", "gpus", d.PCIAddress, "information"))
	must(t, err)
	minor = -1
	for line := range strings.Lines(string(data)) {
		label, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); strings.TrimSpace(label) {
		case "Device Minor":
			minor, err = strconv.Atoi(value)
			must(t, err)
		case "GPU UUID":
			uuid = value
		}
	}
	if minor < 0 || uuid == "" {
		t.Fatalf("no minor or UUID of %s in:\n%s", device, data)
	}
	return minor, uuid
}

// partitionNodes returns the capability nodes of a MIG device and its UUID in nvidia-smi, from the simulated kernel
// and machine, which are independent of the driver. A whole GPU has none.
func partitionNodes(t *testing.T, device string) (nodes, uuids []string) {
	t.Helper()
	d, err := gpu.ParseName(device)
	must(t, err)
	if d.Kind != gpu.KindMIG {
		return nil, nil
	}
	g := simulatedGPU(t, d.PCIAddress)
	for _, i := range g.Instances {
		if i.Start != d.Start {
			continue
		}
		if len(i.Computes) != 1 {
			t.Fatalf("%s: GPU instance %d has %d compute instances", device, i.ID, len(i.Computes))
		}
		for _, capability := range []string{fmt.Sprintf("gi%d", i.ID), fmt.Sprintf("gi%d/ci%d", i.ID, i.Computes[0].ID)} {
			path := filepath.Join(cluster.Root, "proc/driver/nvidia/capabilities", fmt.Sprintf("gpu%d", g.Minor), "mig", capability, "access")
			data, err := os.ReadFile(path)
			must(t, err)
			minor, _, _ := strings.Cut(strings.TrimPrefix(string(data), "DeviceFileMinor: "), "\n")
			nodes = append(nodes, "/dev/nvidia-caps/nvidia-cap"+minor)
		}
		return nodes, []string{i.Computes[0].UUID}
	}
	t.Fatalf("%s is held and the GPU has no instance there: %+v", device, g.Instances)
	return nil, nil
}

// simulatedGPU is a GPU in the simulator's state.
func simulatedGPU(t *testing.T, address string) engine.GPU {
	t.Helper()
	state, err := engine.Open(cluster.Root, nil).State()
	must(t, err)
	for _, g := range state.GPUs {
		if g.Address == address {
			return g
		}
	}
	t.Fatalf("no GPU at %s", address)
	return engine.GPU{}
}

// capsMajor returns the major number of the simulated kernel's capabilities.
func capsMajor(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(cluster.Root, "proc/devices"))
	must(t, err)
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[1] == "nvidia-caps" {
			major, err := strconv.Atoi(fields[0])
			must(t, err)
			return major
		}
	}
	t.Fatal("the simulated kernel has no nvidia-caps")
	return 0
}
