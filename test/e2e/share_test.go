//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/test/e2e/env"
)

// memoryBytes returns the memory of a published device, in bytes. A kubelet that starts removes the slices of its node, and the
// plugin publishes them again.
func memoryBytes(ctx context.Context, t *testing.T, device string) (bytes int64) {
	t.Helper()
	must(t, cluster.Eventually(ctx, device+" published", 60*time.Second, func(ctx context.Context) (bool, string) {
		for _, kind := range []string{"gpu", "mig"} {
			devices, err := cluster.Devices(ctx, kind)
			must(t, err)
			for _, d := range devices {
				if d.Name == device {
					c := d.Capacity["memory"]
					bytes = c.Value.Value()
					return true, ""
				}
			}
		}
		return false, "it is not"
	}))
	return bytes
}

// shareBytes returns the memory of a pod's claim on a device, if the claim has a share.
func shareBytes(ctx context.Context, t *testing.T, p corev1.Pod, claim, device string) (int64, bool) {
	t.Helper()
	claims, err := cluster.Claims(ctx, p)
	must(t, err)
	for _, c := range claims {
		for _, r := range env.Results(c) {
			if c.Name == claim && r.Device == device {
				bytes, ok := env.Share(r)
				return bytes, ok && bytes+1<<20 <= memoryBytes(ctx, t, device)
			}
		}
	}
	return 0, false
}

// checkSharesFit checks that the shares, by "device claim", do not exceed their device.
func checkSharesFit(ctx context.Context, t *testing.T, taken map[string]int64) {
	t.Helper()
	sums := map[string]int64{}
	for key, bytes := range taken {
		device, _, _ := strings.Cut(key, " ")
		sums[device] += bytes
	}
	for device, sum := range sums {
		if has := memoryBytes(ctx, t, device); sum > has {
			t.Errorf("the shares of %s take %d MiB, and it has %d", device, sum>>20, has>>20)
		}
	}
}

// checkSharesOn checks the number of shares of a demo's pods, the number of their devices, and that each container
// has its own share.
func checkSharesOn(want, devices int) func(context.Context, *testing.T, []corev1.Pod) {
	return func(ctx context.Context, t *testing.T, pods []corev1.Pod) {
		t.Helper()
		if on := sharedDevices(ctx, t, pods, want); len(on) != devices {
			t.Errorf("the shares are of %d devices, want %d: %v", len(on), devices, on)
		}
	}
}

// checkShares does the same for devices that the scheduler chooses. It may spread the shares: when it places the
// first pod, it can still count claims of an earlier demo. TestShares_FourOfOneGPU_EachHasItsLimit puts them on one
// GPU.
func checkShares(want int) func(context.Context, *testing.T, []corev1.Pod) {
	return func(ctx context.Context, t *testing.T, pods []corev1.Pod) {
		t.Helper()
		sharedDevices(ctx, t, pods, want)
	}
}

// sharedDevices checks each share of the pods, and their number, and returns their devices.
func sharedDevices(ctx context.Context, t *testing.T, pods []corev1.Pod, want int) map[string]bool {
	t.Helper()
	on, got := map[string]bool{}, 0
	for _, p := range pods {
		if p.Status.Phase != corev1.PodRunning {
			continue
		}
		for claim, names := range devicesByClaim(ctx, t, p) {
			for _, device := range names {
				if _, shared := shareBytes(ctx, t, p, claim, device); shared {
					on[device] = true
					got++
					checkShare(ctx, t, p, claim, device)
				}
			}
		}
	}
	if got != want {
		t.Errorf("there are %d shares, want %d: %v", got, want, on)
	}
	return on
}

// usableBytes is a share without its part of what the simulated H100 says its driver keeps.
func usableBytes(d gpu.Device, share int64) uint64 {
	if d.Kind == gpu.KindGPU {
		return uint64(share) >> 20 * (81559 - 454) / 81559 << 20
	}
	return uint64(share)
}

// checkShare asserts from inside each container of a pod what its share of a device is worth.
func checkShare(ctx context.Context, t *testing.T, p corev1.Pod, claim, device string) {
	t.Helper()
	var result resourceapi.DeviceRequestAllocationResult
	claims, err := cluster.Claims(ctx, p)
	must(t, err)
	for _, c := range claims {
		for _, r := range env.Results(c) {
			if c.Name == claim && r.Device == device {
				result = r
			}
		}
	}
	bytes, _ := env.Share(result)
	d, err := gpu.ParseName(device)
	must(t, err)
	usable := usableBytes(d, bytes)
	for _, c := range p.Spec.Containers {
		view, err := cluster.Inspect(ctx, p.Namespace, p.Name, c.Name)
		must(t, err)
		if got := view.Env["NVIDIA_DRA_SHARE_MEMORY_MIB"]; got != strconv.FormatUint(usable>>20, 10) {
			t.Errorf("%s/%s has a share of %s MiB in its environment, want %d", p.Name, c.Name, got, usable>>20)
		}
		if view.Env["NVIDIA_DRA_SHARING_STRATEGY"] != "MPS" {
			if view.CUDA.MPS {
				t.Errorf("%s/%s takes turns and has MPS", p.Name, c.Name)
			}
			continue
		}
		checkMPSLimits(t, p, d, view, usable, result)
	}
}

// checkMPSLimits checks the limits of a container that computes through MPS.
func checkMPSLimits(t *testing.T, p corev1.Pod, d gpu.Device, view env.View, usable uint64, result resourceapi.DeviceRequestAllocationResult) {
	t.Helper()
	if view.Env["CUDA_MPS_PIPE_DIRECTORY"] == "" {
		t.Errorf("%s has no way to the MPS daemon: %v", p.Name, view.Env)
	}
	mode := nvml.ComputeMode(simulatedGPU(t, d.PCIAddress).ComputeMode)
	if want := nvml.ComputeExclusiveProcess; d.Kind == gpu.KindGPU && mode != want {
		t.Errorf("the GPU of %s is in compute mode %s, want %s", p.Name, mode, want)
	}
	if !view.CUDA.MPS {
		return // It only monitors.
	}
	// As root in the container too. The client connects to a socket and writes to a FIFO of the directory.
	if !strings.Contains(view.CUDA.PipeWrite, "read-only file system") {
		t.Errorf("making a file in the pipe directory of %s gives %q, want a read-only file system", p.Name, view.CUDA.PipeWrite)
	}
	if view.CUDA.Error != "" || view.CUDA.LimitBytes != usable {
		t.Errorf("%s has a limit of %d MiB, want %d: %s", p.Name, view.CUDA.LimitBytes>>20, usable>>20, view.CUDA.Error)
	}
	threads := 100
	if compute := result.ConsumedCapacity["compute"]; compute.Value() > 0 {
		threads = int(compute.Value())
	}
	if view.CUDA.Threads != threads {
		t.Errorf("%s may use %d %% of the SMs, want %d", p.Name, view.CUDA.Threads, threads)
	}
	used := uint64(0)
	for _, a := range view.CUDA.Allocs {
		if want := used+a.Bytes <= usable; a.OK != want {
			t.Errorf("%s: allocating %d MiB beside %d: %v (%s), want %v", p.Name, a.Bytes>>20, used>>20, a.OK, a.Error, want)
		}
		if a.OK {
			used += a.Bytes
		}
	}
}

// checkProcesses checks that each process of a share has the share's limit.
func checkProcesses(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	checkSharesOn(1, 1)(ctx, t, pods)
	view, err := cluster.Inspect(ctx, pods[0].Namespace, pods[0].Name, "probe")
	must(t, err)
	if len(view.Processes) != 1 {
		t.Fatalf("there are %d other processes", len(view.Processes))
	}
	if diff := cmp.Diff(view.CUDA.Allocs, view.Processes[0].Allocs); diff != "" || view.CUDA.LimitBytes != view.Processes[0].LimitBytes {
		t.Errorf("the two processes do not have the same (-first +second):\n%s", diff)
	}
}

// checkSharesByRequest checks that each container of a pod, named like a request of its claim, has that request's share.
func checkSharesByRequest(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		claims, err := cluster.Claims(ctx, p)
		must(t, err)
		results := env.Results(claims[0])
		if len(results) != len(p.Spec.Containers) || (results[0].Device == results[1].Device) != (p.Name == "pair") {
			t.Fatalf("the claim of %s has the shares %v", p.Name, results)
		}
		for _, r := range results {
			checkShareOfRequest(ctx, t, p, r)
		}
	}
}

func checkShareOfRequest(ctx context.Context, t *testing.T, p corev1.Pod, r resourceapi.DeviceRequestAllocationResult) {
	t.Helper()
	view, err := cluster.Inspect(ctx, p.Namespace, p.Name, r.Request)
	must(t, err)
	bytes, _ := env.Share(r)
	d, err := gpu.ParseName(r.Device)
	must(t, err)
	if !view.CUDA.MPS || len(view.CUDA.Allocs) != 2 || !view.CUDA.Allocs[0].OK || view.CUDA.Allocs[1].OK {
		t.Errorf("%s/%s does not compute within its share: %+v", p.Name, r.Request, view.CUDA)
	}
	usable := usableBytes(d, bytes)
	if got := view.Env["NVIDIA_DRA_SHARE_MEMORY_MIB"]; got != strconv.FormatUint(usable>>20, 10) {
		t.Errorf("%s/%s has a share of %s MiB by its environment, want %d", p.Name, r.Request, got, usable>>20)
	}
	checkMPSLimits(t, p, d, view, usable, r)
}

// checkConfiguredLimits checks the limits that a GpuConfig sets for the containers of a claim.
func checkConfiguredLimits(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	checkDevices(1)(ctx, t, pods)
	for _, c := range pods[0].Spec.Containers {
		view, err := cluster.Inspect(ctx, pods[0].Namespace, pods[0].Name, c.Name)
		must(t, err)
		if view.CUDA.LimitBytes != 10<<30 || view.CUDA.Threads != 50 || len(view.CUDA.Allocs) != 2 || !view.CUDA.Allocs[0].OK || view.CUDA.Allocs[1].OK {
			t.Errorf("%s: %+v", c.Name, view.CUDA)
		}
	}
}

// checkLongTimeSlice checks the GPU's time slice while the claim is prepared.
func checkLongTimeSlice(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	checkDevices(1)(ctx, t, pods)
	for _, devices := range devicesByClaim(ctx, t, pods[0]) {
		d, err := gpu.ParseName(devices[0])
		must(t, err)
		if g := simulatedGPU(t, d.PCIAddress); g.TimeSlice != 3 {
			t.Errorf("the time slice is %d, want 3 (long)", g.TimeSlice)
		}
	}
}
