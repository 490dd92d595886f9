// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cdi_test

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/memorylimit"
	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

const driver = "gpu.nvidia.com"

func onePlan() plan.Plan {
	return plan.Plan{
		Claim: plan.Claim{Namespace: "ns", Name: "c", UID: "u-1"}, Digest: "a",
		Devices: []plan.Device{{
			Request: "gpu", Pool: "n/gpu", Name: "gpu-0000-1b-00-0", Kind: gpu.KindGPU, PCIAddress: "0000:1b:00.0", UUID: "GPU-0",
		}},
	}
}

func node(path string, minor int64) *specs.DeviceNode {
	return &specs.DeviceNode{Path: path, Type: "c", Major: 195, Minor: minor, Permissions: "rwm"}
}

func edits() cdi.Edits {
	return cdi.Edits{
		Common: specs.ContainerEdits{
			Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}, DeviceNodes: []*specs.DeviceNode{node("/dev/nvidiactl", 255)},
		},
		Devices: []specs.ContainerEdits{{DeviceNodes: []*specs.DeviceNode{node("/dev/nvidia0", 0)}}},
	}
}

const golden = `{"cdiVersion":"0.6.0","kind":"k8s.gpu.nvidia.com/claim","annotations":{"k8s.gpu.nvidia.com/boot":"boot-1","k8s.gpu.nvidia.com/prepared-claim":"{\"claim\":{\"namespace\":\"ns\",\"name\":\"c\",\"uid\":\"u-1\"},\"allocation\":\"a\",\"devices\":[{\"request\":\"gpu\",\"pool\":\"n/gpu\",\"name\":\"gpu-0000-1b-00-0\",\"kind\":\"gpu\",\"pciAddress\":\"0000:1b:00.0\",\"uuid\":\"GPU-0\",\"minor\":0}]}","k8s.gpu.nvidia.com/sha256":"540ef48e53fa5895e158c2c6366680adfc691a6041f73838819cd78d99216989"},"devices":[{"name":"u-1-gpu-0000-1b-00-0","containerEdits":{"env":["NVIDIA_DRA_UUID_GPU_GPU_0000_1B_00_0=GPU-0"],"deviceNodes":[{"path":"/dev/nvidia0","type":"c","major":195,"permissions":"rwm"}]}}],"containerEdits":{"env":["NVIDIA_VISIBLE_DEVICES=void"],"deviceNodes":[{"path":"/dev/nvidiactl","type":"c","major":195,"minor":255,"permissions":"rwm"}]}}
`

func encoded(t *testing.T, p plan.Plan, e cdi.Edits) []byte {
	t.Helper()
	spec, err := cdi.Spec(driver, p, "boot-1", e)
	if err != nil {
		t.Fatal(err)
	}
	data, err := cdi.Encode(spec)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestEncode_Spec_IsGolden(t *testing.T) {
	data := encoded(t, onePlan(), edits())
	if diff := cmp.Diff(golden, string(data)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	back, boot, err := cdi.PlanOf(driver, data)
	if diff := cmp.Diff(onePlan(), back); diff != "" || err != nil || boot != "boot-1" {
		t.Errorf("the plan out of the spec: %v\n%s", err, diff)
	}
}

func TestSpec_Runtime_InjectsTheDevice(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "claim.json"), encoded(t, onePlan(), edits()), 0o600); err != nil {
		t.Fatal(err)
	}
	cache, err := cdilib.NewCache(cdilib.WithSpecDirs(dir), cdilib.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	container := &oci.Spec{}
	if missing, err := cache.InjectDevices(container, cdi.DeviceID(driver, onePlan(), 0)); err != nil || len(missing) > 0 {
		t.Fatal(missing, err)
	}
	var paths []string
	for _, d := range container.Linux.Devices {
		paths = append(paths, d.Path)
	}
	if diff := cmp.Diff([]string{"/dev/nvidiactl", "/dev/nvidia0"}, paths); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRA_UUID_GPU_GPU_0000_1B_00_0=GPU-0"}, container.Process.Env); diff != "" {
		t.Error(diff)
	}
}

func TestSpec_SharesAndRepeats_HaveOneDeviceEach(t *testing.T) {
	p, e := onePlan(), edits()
	again := p.Devices[0]
	share := again
	share.ShareID = "s"
	p.Devices = append(p.Devices, again, share)
	e.Devices = append(e.Devices, e.Devices[0], e.Devices[0])
	spec, err := cdi.Spec(driver, p, "boot-1", e)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range spec.Devices {
		names = append(names, d.Name)
	}
	if diff := cmp.Diff([]string{"u-1-gpu-0000-1b-00-0", "u-1-gpu-0000-1b-00-0-s"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestSpec_EveryKindOfDevice_HasItsUUIDs(t *testing.T) {
	p, e := onePlan(), edits()
	p.Devices = []plan.Device{
		{Request: "ring", Name: "nvlink-2-0000-10-00-0", Kind: gpu.KindGroup, UUID: "GPU-1"},
		{Request: "ring", Name: "nvlink-2-0000-10-00-0", Kind: gpu.KindGroup, UUID: "GPU-2"},
		{Request: "any/a-part", Name: "gpu-0000-1b-00-0-mig-1g-10gb-4", Kind: gpu.KindMIG, UUID: "GPU-3", Partition: plan.Partition{UUID: "MIG-4"}},
		{Request: "lost", Name: "gpu-0000-1b-00-0-mig-1g-10gb-5", Kind: gpu.KindMIG, UUID: "GPU-3"},
		{Request: "watch", Name: "monitor-0000-1b-00-0", Kind: gpu.KindMonitor, Admin: true, UUID: "GPU-3"},
		{Request: "also", Name: "monitor-0000-1b-00-0", Kind: gpu.KindMonitor, Admin: true, UUID: "GPU-3"},
	}
	e.Devices = slices.Repeat(e.Devices, len(p.Devices))
	spec, err := cdi.Spec(driver, p, "boot-1", e)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, d := range spec.Devices {
		got[d.Name] = d.ContainerEdits.Env
	}
	if diff := cmp.Diff(map[string][]string{
		"u-1-nvlink-2-0000-10-00-0":          {"NVIDIA_DRA_UUID_RING_NVLINK_2_0000_10_00_0=GPU-1,GPU-2"},
		"u-1-gpu-0000-1b-00-0-mig-1g-10gb-4": {"NVIDIA_DRA_UUID_ANY_A_PART_GPU_0000_1B_00_0_MIG_1G_10GB_4=MIG-4"},
		"u-1-gpu-0000-1b-00-0-mig-1g-10gb-5": nil,
		"u-1-monitor-0000-1b-00-0":           {"NVIDIA_DRA_UUID_WATCH_MONITOR_0000_1B_00_0=GPU-3", "NVIDIA_DRA_UUID_ALSO_MONITOR_0000_1B_00_0=GPU-3"},
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSpec_UnusableEdits_ReturnsError(t *testing.T) {
	for name, change := range map[string]func(*plan.Plan, *cdi.Edits){
		"no device node":        func(_ *plan.Plan, e *cdi.Edits) { e.Devices[0].DeviceNodes = nil },
		"edits are missing":     func(_ *plan.Plan, e *cdi.Edits) { e.Devices = nil },
		"a variable of no name": func(_ *plan.Plan, e *cdi.Edits) { e.Common.Env = []string{"=x"} },
		"a mount to nowhere": func(_ *plan.Plan, e *cdi.Edits) {
			e.Devices[0].Mounts = []*specs.Mount{{HostPath: "/a"}}
		},
		"a hook of no stage":        func(_ *plan.Plan, e *cdi.Edits) { e.Common.Hooks = []*specs.Hook{{HookName: "never", Path: "/h"}} },
		"a name no device may have": func(p *plan.Plan, _ *cdi.Edits) { p.Claim.UID = "u 1" },
	} {
		p, e := onePlan(), edits()
		change(&p, &e)
		if spec, err := cdi.Spec(driver, p, "boot-1", e); err == nil {
			t.Errorf("%s: accepted as %+v", name, spec)
		}
	}
}

func TestPlanOf_NoPlan_ReturnsError(t *testing.T) {
	for in, want := range map[string]string{
		"x": "not JSON", "{}": "contains no plan",
		`{"annotations":{"k8s.gpu.nvidia.com/prepared-claim":"x"}}`:  "not readable",
		`{"annotations":{"k8s.gpu.nvidia.com/prepared-claim":"{}"}}`: "contains no claim",
	} {
		if _, _, err := cdi.PlanOf(driver, []byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("PlanOf(%s): %v, want %q in it", in, err, want)
		}
	}
}

// TestPlanOf_KeysBeforeRenaming_ReturnsError reads a spec from before keys of the plan were renamed.
func TestPlanOf_KeysBeforeRenaming_ReturnsError(t *testing.T) {
	data, err := os.ReadFile("testdata/early-keys.json")
	if err != nil {
		t.Fatal(err)
	}
	if p, _, err := cdi.PlanOf(driver, data); err == nil || !strings.Contains(err.Error(), "contains no plan") {
		t.Errorf("it is read as %+v, %v", p, err)
	}
}

// TestPlanOf_DamagedPlan_ReturnsError changes each byte of the plan and of the boot.
func TestPlanOf_DamagedPlan_ReturnsError(t *testing.T) {
	first, last := strings.Index(golden, "boot-1"), strings.Index(golden, `","k8s.gpu.nvidia.com/sha256`)
	if first < 0 || last < first {
		t.Fatal("the golden spec has another form")
	}
	for i := first; i < last; i++ {
		damaged := []byte(golden)
		damaged[i] ^= 1
		p, boot, err := cdi.PlanOf(driver, damaged)
		if good, goodBoot, _ := cdi.PlanOf(driver, []byte(golden)); err == nil && (boot != goodBoot || !reflect.DeepEqual(p, good)) {
			t.Errorf("byte %d: %+v of %q", i, p, boot)
		}
	}
	// Earlier versions wrote no checksum.
	if _, _, err := cdi.PlanOf(driver, []byte(strings.Replace(golden, "/sha256", "/other", 1))); err != nil {
		t.Error(err)
	}
}

func FuzzPlanOf(f *testing.F) {
	f.Add([]byte(golden))
	f.Add([]byte(`{"annotations":{"k8s.gpu.nvidia.com/prepared-claim":"{}"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, _, err := cdi.PlanOf(driver, data); err == nil && p.Claim.UID == "" {
			t.Error("a plan of no claim")
		}
	})
}

// TestDeviceEdits_LimitOfAContainer_IsItsHook reads the hook's arguments as the hook does.
func TestDeviceEdits_LimitOfAContainer_IsItsHook(t *testing.T) {
	p := onePlan()
	d := p.Devices[0]
	d.Sharing.ContainerLimit = 4 << 30
	given := edits().Devices[0]
	given.Hooks = []*specs.Hook{{HookName: "createContainer", Path: "/hook"}}
	paths := cdi.Paths{LimitHook: "/data/memory-limit-hook", LimitRequests: "/data/memory-limits", Share: "s-1"}
	got := cdi.DeviceEdits(given, p.Claim, d, paths)
	if len(got.Hooks) != 2 || len(given.Hooks) != 1 {
		t.Fatalf("%d hooks, %d given", len(got.Hooks), len(given.Hooks))
	}
	h := got.Hooks[1]
	if h.HookName != "createRuntime" || h.Path != paths.LimitHook || h.Timeout == nil || *h.Timeout == 0 {
		t.Errorf("hook %+v", h)
	}
	var r memorylimit.Request
	requests, err := r.Parse(flag.NewFlagSet("", flag.ContinueOnError), h.Args[1:])
	want := memorylimit.Request{Claim: "ns/c", ClaimUID: "u-1", Device: d.Name, Share: "s-1", Address: d.PCIAddress, UUID: d.UUID, Bytes: 4 << 30}
	if err != nil || requests != paths.LimitRequests || r != want {
		t.Errorf("%v: %s, %+v", err, requests, r)
	}
	encoded(t, p, cdi.Edits{Devices: []specs.ContainerEdits{got}}) // It is valid.
	d.Admin = true
	if got := cdi.DeviceEdits(given, p.Claim, d, paths); len(got.Hooks) != 1 {
		t.Error("a claim with admin access has a limit")
	}
}
