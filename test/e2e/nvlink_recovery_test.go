//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/test/e2e/env"
)

// request returns a request for a device of a class that matches the CEL expressions.
func request(name, class string, expressions ...string) resourceapi.DeviceRequest {
	exact := &resourceapi.ExactDeviceRequest{DeviceClassName: class}
	for _, e := range expressions {
		exact.Selectors = append(exact.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exact}
}

// createRequests creates a claim; matching is an attribute that all its devices share, or empty.
func createRequests(ctx context.Context, t *testing.T, namespace, name, matching string, requests ...resourceapi.DeviceRequest) {
	t.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}}
	if matching != "" {
		attribute := resourceapi.FullyQualifiedName(matching)
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}}
	}
	_, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, c, metav1.CreateOptions{})
	must(t, err)
}

func groupOf(size int) resourceapi.DeviceRequest {
	return request("gpu", "nvlink.gpu.nvidia.com", fmt.Sprintf("device.attributes['gpu.nvidia.com'].gpuCount == %d", size))
}

// podDevices lists the GPUs of a pod, with those of a group one by one.
func podDevices(ctx context.Context, t *testing.T, p corev1.Pod) (out []string) {
	t.Helper()
	for _, devices := range devicesByClaim(ctx, t, p) {
		out = append(out, devices...)
	}
	return out
}

// waitUnschedulable waits until a pod cannot be scheduled.
func waitUnschedulable(ctx context.Context, t *testing.T, namespace, name string) {
	t.Helper()
	must(t, cluster.Eventually(ctx, name+" to wait", 60*time.Second, func(ctx context.Context) (bool, string) {
		p, err := cluster.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return env.Unschedulable(*p) != "", string(p.Status.Phase)
	}))
}

func TestGroups_GPUHasPartitions_PodWaitsUntilTheyEnd(t *testing.T) {
	ctx := testContext(t)
	namespace := createNamespace(ctx, t, nil)
	createPartitionClaim(ctx, t, namespace, "part", `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`)
	part := createPod(ctx, t, namespace, "part", "part", nil)
	waitRunning(ctx, t, namespace, part.Name)
	createRequests(ctx, t, namespace, "eight", "", groupOf(8))
	createPod(ctx, t, namespace, "eight", "eight", nil)
	waitUnschedulable(ctx, t, namespace, "eight")
	// The links of a GPU in MIG mode cannot be read: a restarted plugin uses the links that its predecessor stored.
	before := pluginPods(ctx, t, 1)[0]
	must(t, cluster.Client.CoreV1().Pods(before.Namespace).Delete(ctx, before.Name, metav1.DeleteOptions{}))
	must(t, cluster.Eventually(ctx, "another plugin", 60*time.Second, func(ctx context.Context) (bool, string) {
		return pluginPods(ctx, t, 1)[0].UID != before.UID, "it is the same"
	}))
	must(t, cluster.Client.CoreV1().Pods(namespace).Delete(ctx, "part", metav1.DeleteOptions{}))
	must(t, cluster.Client.ResourceV1().ResourceClaims(namespace).Delete(ctx, "part", metav1.DeleteOptions{}))
	eight := waitRunning(ctx, t, namespace, "eight")
	checkPod(ctx, t, eight)
	if n := len(podDevices(ctx, t, eight)); n != 8 {
		t.Errorf("the group has %d GPUs", n)
	}
}

// triggerScan makes the plugin scan the GPUs soon, because it watches the device nodes. Each call creates a file with
// another name: the plugin does not notice a file that vanishes and returns between two scans.
func triggerScan(t *testing.T) {
	t.Helper()
	scanTriggers++
	file := filepath.Join(cluster.Root, "dev", fmt.Sprintf("nvidia%d", 90+scanTriggers))
	must(t, os.WriteFile(file, nil, 0o600))
	t.Cleanup(func() { _ = os.Remove(file) })
}

var scanTriggers int

// TestGroups_LinkFails_IdleOnesAreWithdrawn checks that a pod's group stays published, with a taint, until it is
// released.
func TestGroups_LinkFails_IdleOnesAreWithdrawn(t *testing.T) {
	ctx := testContext(t, everyDevice...)
	namespace := createNamespace(ctx, t, nil)
	createRequests(ctx, t, namespace, "pair", "", groupOf(2))
	createPod(ctx, t, namespace, "pair", "pair", nil)
	pair := waitRunning(ctx, t, namespace, "pair")
	mine := podDevices(ctx, t, pair)
	if len(mine) != 2 {
		t.Fatalf("the pair is %v", mine)
	}
	d, err := gpu.ParseName(mine[1])
	must(t, err)
	name := gpu.Device{Kind: gpu.KindGroup, Size: 2, PCIAddress: addressOf(t, mine[0])}.Name()
	groups := func(ctx context.Context) (tainted, free []string) {
		devices, err := cluster.Devices(ctx, string(gpu.KindGroup))
		must(t, err)
		for _, d := range devices {
			if len(d.Taints) > 0 {
				tainted = append(tainted, d.Name)
			} else {
				free = append(free, d.Name)
			}
		}
		return tainted, free
	}
	must(t, cluster.Eventually(ctx, "all groups", 60*time.Second, func(ctx context.Context) (bool, string) {
		_, free := groups(ctx)
		return len(free) == 7, fmt.Sprint(free)
	}))
	must(t, cluster.Sim(ctx, "inject", "link-down", d.PCIAddress, "--link", "3"))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		must(t, cluster.Sim(ctx, "inject", "link-up", d.PCIAddress, "--link", "3"))
		triggerScan(t)
		must(t, cluster.Eventually(ctx, "all groups", 60*time.Second, func(ctx context.Context) (bool, string) {
			tainted, free := groups(ctx)
			return len(free) == 7 && len(tainted) == 0, fmt.Sprintf("tainted %v, free %v", tainted, free)
		}))
	})
	triggerScan(t)
	// Of seven groups three had the GPU: a four, the eight, and the pair, which stays as long as its pod does.
	must(t, cluster.Eventually(ctx, "groups without the GPU", 60*time.Second, func(ctx context.Context) (bool, string) {
		tainted, free := groups(ctx)
		return slices.Equal(tainted, []string{name}) && len(free) == 4, fmt.Sprintf("tainted %v, free %v", tainted, free)
	}))
	checkPod(ctx, t, pair)
	must(t, cluster.Eventually(ctx, "the pod's status to say so", 60*time.Second, func(ctx context.Context) (bool, string) {
		p, err := cluster.Client.CoreV1().Pods(namespace).Get(ctx, "pair", metav1.GetOptions{})
		must(t, err)
		for _, c := range p.Status.ContainerStatuses {
			for _, r := range c.AllocatedResourcesStatus {
				for _, h := range r.Resources {
					if h.Health == corev1.ResourceHealthStatusUnhealthy {
						return true, ""
					}
				}
			}
		}
		return false, fmt.Sprintf("%+v", p.Status.ContainerStatuses)
	}))
	waitEvent(ctx, t, namespace, "pair", name, "NVLink no longer connects its GPUs", "delete the pod to run it on other GPUs")
	// The group holds its GPUs: six are free, and no seventh.
	for i := range 7 {
		one := fmt.Sprintf("one-%d", i)
		createClaim(ctx, t, namespace, one, "")
		createPod(ctx, t, namespace, one, one, nil)
	}
	six := 0
	must(t, cluster.Eventually(ctx, "six of seven pods", 90*time.Second, func(ctx context.Context) (bool, string) {
		six = 0
		stuck := 0
		for i := range 7 {
			p, err := cluster.Client.CoreV1().Pods(namespace).Get(ctx, fmt.Sprintf("one-%d", i), metav1.GetOptions{})
			must(t, err)
			if ready(*p) {
				six++
			} else if env.Unschedulable(*p) != "" {
				stuck++
			}
		}
		return six == 6 && stuck == 1, fmt.Sprintf("%d run, %d wait", six, stuck)
	}))
	// A restarted container of the pod has the same GPUs.
	must(t, cluster.Node(ctx, "restart", "kubelet"))
	must(t, cluster.Eventually(ctx, "the node", 60*time.Second, nodeReady))
	checkPod(ctx, t, waitRunning(ctx, t, namespace, "pair"))
	must(t, cluster.Client.CoreV1().Pods(namespace).Delete(ctx, "pair", metav1.DeleteOptions{}))
	must(t, cluster.Eventually(ctx, "the group gone", 60*time.Second, func(ctx context.Context) (bool, string) {
		tainted, _ := groups(ctx)
		return len(tainted) == 0, fmt.Sprintf("%v", tainted)
	}))
	for i := range 7 {
		waitRunning(ctx, t, namespace, fmt.Sprintf("one-%d", i))
	}
}

// startOnNode builds a program of the tree and runs it on the node until stop is called, or the test ends.
func startOnNode(ctx context.Context, t *testing.T, pkg string, args ...string) (stop func()) {
	t.Helper()
	binary := filepath.Join(cluster.Dir, filepath.Base(pkg)) // The next test with the program does not link it again.
	_, err := cluster.Run(ctx, "go", "-C", "test", "build", "-o", binary, pkg)
	must(t, err)
	return startProgramOnNode(ctx, t, binary, args...)
}

// startProgramOnNode runs a program on the node until stop is called, or the test ends. The end of its input asks it to exit.
func startProgramOnNode(ctx context.Context, t *testing.T, binary string, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), cluster.Onenode, append([]string{"exec", "--dir", cluster.Dir, "--", binary}, args...)...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	stdin, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	stop = sync.OnceFunc(func() {
		_ = stdin.Close() // It exits when its input is closed.
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", binary, err, said.String())
		}
	})
	t.Cleanup(stop)
	return stop
}

// startOtherDriver runs a second DRA driver on the node, with devices on the given PCIe roots and NUMA nodes, and creates a
// class of them.
func startOtherDriver(ctx context.Context, t *testing.T, driver, class string, args ...string) {
	t.Helper()
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	_, err = cluster.Client.ResourceV1().DeviceClasses().Create(ctx, &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: class},
		Spec:       resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + driver + "'"}}}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		must(t, cluster.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.driver=" + driver}))
		must(t, cluster.Client.ResourceV1().DeviceClasses().Delete(ctx, class, metav1.DeleteOptions{}))
	})
	startOnNode(ctx, t, "./nic", append([]string{
		"--driver", driver, "--kubeconfig", os.Getenv("KUBECONFIG"), "--node", nodes.Items[0].Name,
	}, args...)...)
}

func TestConstraints_GPUAndNetworkCard_OnOneRootOrNUMANode(t *testing.T) {
	ctx := testContext(t)
	state, err := engine.Open(cluster.Root, nil).State()
	must(t, err)
	slot := state.Profile.Slots[5]
	startOtherDriver(ctx, t, "nic.example.com", "nic.example.com", "close,"+slot.Path[0]+",", fmt.Sprintf("near,,%d", slot.NUMANode))
	namespace := createNamespace(ctx, t, nil) // Its cleanup runs first: the end of its pods needs both drivers.
	gpus := map[string]bool{}
	for _, attribute := range []string{"resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"} {
		name := strings.ToLower(strings.TrimPrefix(attribute, "resource.kubernetes.io/"))
		createRequests(ctx, t, namespace, name, attribute, request("gpu", "gpu.nvidia.com"), request("nic", "nic.example.com"))
		createPod(ctx, t, namespace, name, name, nil)
		p := waitRunning(ctx, t, namespace, name)
		claims, err := cluster.Claims(ctx, p)
		must(t, err)
		for _, r := range claims[0].Status.Allocation.Devices.Results {
			if r.Driver != env.Driver {
				continue
			}
			gpus[r.Device] = true
			at := addressOf(t, r.Device)
			n := slices.IndexFunc(state.Profile.Slots, func(s profiles.Slot) bool { return s.Address == at })
			if got := state.Profile.Slots[n]; attribute == "resource.kubernetes.io/pcieRoot" && got.Path[0] != slot.Path[0] || got.NUMANode != slot.NUMANode {
				t.Errorf("%s gave %s, at %s on NUMA node %d", attribute, r.Device, got.Path[0], got.NUMANode)
			}
		}
		view, err := cluster.Inspect(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name)
		must(t, err)
		if len(view.GPUs()) != 1 {
			t.Errorf("%s sees %v", name, view.GPUs())
		}
	}
	if len(gpus) != 2 {
		t.Errorf("the pods have %v", gpus)
	}
	// The third GPU has no network card on its root.
	createRequests(ctx, t, namespace, "third", "resource.kubernetes.io/pcieRoot", request("gpu", "gpu.nvidia.com"), request("nic", "nic.example.com"))
	createPod(ctx, t, namespace, "third", "third", nil)
	waitUnschedulable(ctx, t, namespace, "third")
}

// TestClaim_OfThisAndComputeDomainDriver_ContainerHasGPU has a stub in place of NVIDIA's driver of compute domains. One
// pod has a claim for both drivers, and one has a claim for each of them.
func TestClaim_OfThisAndComputeDomainDriver_ContainerHasGPU(t *testing.T) {
	ctx := testContext(t)
	const domains, class = "compute-domain.nvidia.com", "compute-domain-default-channel.nvidia.com"
	startOtherDriver(ctx, t, domains, class, "channel-0,,", "channel-1,,")
	namespace := createNamespace(ctx, t, nil) // Its cleanup runs first: the end of its pods needs both drivers.
	create := func(name string, requests ...resourceapi.DeviceRequest) {
		_, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
				Requests: requests,
				Config: []resourceapi.DeviceClaimConfiguration{{
					Requests: []string{"channel"},
					DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
						Driver: domains, Parameters: runtime.RawExtension{
							Raw: []byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"ComputeDomainChannelConfig","domainID":"d"}`),
						},
					}},
				}},
			}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	create("both", request("gpu", "gpu.nvidia.com"), request("channel", class))
	createPod(ctx, t, namespace, "one-claim", "both", nil)
	createRequests(ctx, t, namespace, "gpus", "", groupOf(2))
	create("channel", request("channel", class))
	createPod(ctx, t, namespace, "claim-each", "gpus", func(s *corev1.PodSpec) {
		channel := "channel"
		s.ResourceClaims = append(s.ResourceClaims, corev1.PodResourceClaim{Name: channel, ResourceClaimName: &channel})
		s.Containers[0].Resources.Claims = append(s.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: channel})
	})
	for name, gpus := range map[string]int{"one-claim": 1, "claim-each": 2} {
		p := waitRunning(ctx, t, namespace, name)
		view, err := cluster.Inspect(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name)
		must(t, err)
		if len(view.GPUs()) != gpus {
			t.Errorf("the container of %s sees %v, want %d GPUs", name, view.GPUs(), gpus)
		}
	}
}

func TestClaim_AllGPUs_ContainerHasThem(t *testing.T) {
	ctx := testContext(t)
	namespace := createNamespace(ctx, t, nil)
	all := request("gpus", "gpu.nvidia.com")
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	createRequests(ctx, t, namespace, "all", "", all)
	createPod(ctx, t, namespace, "p", "all", nil)
	p := waitRunning(ctx, t, namespace, "p")
	checkPod(ctx, t, p)
	if n := len(podDevices(ctx, t, p)); n != 8 {
		t.Errorf("the pod has %d GPUs", n)
	}
}
