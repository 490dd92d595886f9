// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/kubeletplugin"
)

func TestDriverDevice_Kinds_GiveWhatTheContainerNeeds(t *testing.T) {
	planned := plan.Device{Name: "x", PCIAddress: "0000:1b:00.0", UUID: "GPU-1", Minor: 3}
	partition := planned
	partition.Kind, partition.Partition = gpu.KindMIG, plan.Partition{UUID: "MIG-1", GPUInstance: 9, ComputeInstance: 1}
	admin := partition
	admin.Admin = true
	group := planned
	group.Kind = gpu.KindGroup
	whole := driverroot.Device{Name: "x", PCIAddress: "0000:1b:00.0", UUID: "GPU-1", Minor: 3}
	cut, switched := whole, whole
	cut.Partition = &driverroot.Partition{UUID: "MIG-1", GPUInstance: 9, ComputeInstance: 1}
	switched.Switches = true
	for name, c := range map[string]struct {
		planned plan.Device
		want    driverroot.Device
	}{
		"GPU": {planned, whole}, "partition": {partition, cut}, "group": {group, switched},
		"partition with admin access": {admin, whole},
	} {
		if diff := cmp.Diff(c.want, driverDevice(c.planned)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestShareFiles_KernelHasSELinux_ContainersReadFilesOfEarlierReleases(t *testing.T) {
	for selinux, want := range map[bool]string{false: "", true: "system_u:object_r:container_file_t:s0"} {
		mounted := filepath.Join(t.TempDir(), "mounted")
		if err := shareFiles(mounted, hosttest.Filesystems(t, selinux)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(mounted); (err == nil) != selinux {
			t.Errorf("SELinux %v: the directory: %v", selinux, err)
		}
		old := filepath.Join(mounted, "k8s.gpu.nvidia.com-claim_u.metadata-0")
		if err := errors.Join(os.MkdirAll(mounted, 0o755), os.WriteFile(old, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		if err := shareFiles(mounted, hosttest.Filesystems(t, selinux)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{mounted, old} {
			if have := hosttest.SELinuxContext(path); have != want {
				t.Errorf("SELinux %v: %s has the context %q, want %q", selinux, path, have, want)
			}
		}
	}
	err := shareFiles("/proc/self/fdinfo", hosttest.Filesystems(t, true))
	if want := "run on the node, as root: chcon -R -t container_file_t /proc/self/fdinfo"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("the file system has no contexts: %v", err)
	}
}

// TestHook_Deleted_InstalledAgain deletes the hook while the plugin runs.
func TestHook_Deleted_InstalledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		machine := host.New(host.Options{})
		defer machine.Close()
		source, installed := filepath.Join(dir, "image"), filepath.Join(dir, kubeletplugin.HookName)
		if err := os.WriteFile(source, []byte("hook"), 0o755); err != nil {
			t.Fatal(err)
		}
		reports := 0
		h := &hook{machine: machine, sources: map[string]string{kubeletplugin.HookName: source}, dir: dir, node: driverroot.New(driverroot.Options{}), reports: notifytest.Reporter(func(error) { reports++ })}
		there := func() bool {
			data, err := os.ReadFile(installed)
			return err == nil && string(data) == "hook"
		}
		remove := func() {
			if err := os.Remove(installed); err != nil {
				t.Fatal(err)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		go h.Run(ctx)
		synctest.Wait()
		remove()
		if err := h.Install(ctx); err != nil || !there() {
			t.Errorf("before a spec is written there is no hook, %v", err)
		}
		remove()
		time.Sleep(hookInterval)
		synctest.Wait()
		if !there() {
			t.Error("a container that restarts finds no hook")
		}
		if reports != 1 {
			t.Errorf("%d reports of a hook that cannot run", reports)
		}
		stop()
	})
}
