// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
)

// Witness asks the kubelet and the process table who still needs a claim that the API server no longer has.
type Witness struct {
	// Socket is the kubelet's pod-resources socket.
	Socket string
	// ProcRoot is the node's /proc, of its own PID namespace.
	ProcRoot string
	// Snapshot gives today's minor numbers.
	Snapshot func() gpu.Snapshot
	// Capability names the device node of a MIG device's compute instance: of partitions of one GPU, each process has
	// the GPU's node open and the capability of its own alone. Empty where the partition is gone.
	Capability func(plan.Device) (string, error)
	// Held gives the devices of all claims: a claim that is unknown may be on any GPU that no other holds.
	Held func() (plans []plan.Plan, blind bool, err error)
}

// maxAnswer is the size of the kubelet's answer that is accepted, as kubelets' own clients do.
const maxAnswer = 16 << 20

// kubelet is its pod-resources API.
func (w Witness) kubelet() (client podresources.PodResourcesListerClient, hangUp func(), err error) {
	conn, err := grpc.NewClient("unix://"+w.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return nil, nil, fmt.Errorf("reach the kubelet at %s: %w", w.Socket, err)
	}
	return podresources.NewPodResourcesListerClient(conn), func() { _ = conn.Close() }, nil
}

// ReferencedByKubelet implements devicestate.Usage. The CDI devices that the kubelet lists carry the claim's UID, so that a
// new claim of the same name is not taken for the old one where the kubelet tells them apart.
func (w Witness) ReferencedByKubelet(ctx context.Context, claim plan.Claim) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	kubelet, hangUp, err := w.kubelet()
	if err != nil {
		return false, err
	}
	defer hangUp()
	list, err := kubelet.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return false, fmt.Errorf("list the pods at %s: %w", w.Socket, err)
	}
	for _, pod := range list.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, resource := range container.GetDynamicResources() {
				if names(resource, claim) {
					return true, nil
				}
			}
		}
	}
	return false, nil
}

func names(r *podresources.DynamicResource, claim plan.Claim) bool {
	if claim.Name != "" && r.GetClaimName() == claim.Name && r.GetClaimNamespace() == claim.Namespace {
		return true
	}
	for _, resource := range r.GetClaimResources() {
		for _, d := range resource.GetCdiDevices() {
			if strings.Contains(d.GetName(), claim.UID) {
				return true
			}
		}
	}
	return false
}

// bystanders hold every GPU open and use none, or, MPS daemons, use it for others: killing a pod does not end them.
var bystanders = []string{"nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-cuda-mps"}

// OpenedBy implements devicestate.Usage. Watching holds nothing up, so devices of admin access do not count; nor do
// shares, whose device other claims' processes have open as well: of them the kubelet's word must do.
func (w Witness) OpenedBy(ctx context.Context, devices []plan.Device) (string, error) {
	minors, err := w.minors(devices)
	if err != nil || len(minors) == 0 {
		return "", err
	}
	processes, err := os.ReadDir(w.ProcRoot)
	if err != nil {
		return "", fmt.Errorf("list the node's processes: %w", err)
	}
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		dir := filepath.Join(w.ProcRoot, p.Name())
		device, err := holds(dir, minors)
		if err != nil {
			return "", err
		}
		if device == "" {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		comm := strings.TrimSpace(string(name))
		if !slices.Contains(bystanders, comm) {
			return fmt.Sprintf("process %s (%s, with %s open)", p.Name(), comm, device), nil
		}
	}
	return "", nil
}

// minors are the device nodes to look for, as paths below the root.
func (w Witness) minors(devices []plan.Device) ([]string, error) {
	snapshot := w.Snapshot()
	var nodes []string
	if len(devices) == 0 {
		plans, _, err := w.Held()
		if err != nil {
			return nil, err
		}
		taken := map[string]bool{}
		for _, p := range plans {
			for _, address := range p.Exclusive() {
				taken[address] = true
			}
		}
		for _, g := range snapshot.GPUs {
			if !taken[g.PCIAddress] {
				nodes = append(nodes, fmt.Sprintf("dev/nvidia%d", g.Minor))
			}
		}
		return nodes, nil
	}
	for _, d := range devices {
		if d.Admin || d.Partial() {
			continue
		}
		if d.Kind == gpu.KindMIG {
			node, err := w.Capability(d)
			if err != nil {
				return nil, fmt.Errorf("find the device node of %s: %w", d.Name, err)
			}
			if node != "" {
				nodes = append(nodes, "dev/nvidia-caps/"+node)
			}
			continue
		}
		minor := d.Minor
		if g, ok := snapshot.ByAddress(d.PCIAddress); ok {
			minor = g.Minor // The one in the plan may be an earlier boot's.
		}
		nodes = append(nodes, fmt.Sprintf("dev/nvidia%d", minor))
	}
	return nodes, nil
}

// holds names the device node that a process has open, empty for none. A process that ends meanwhile holds nothing.
func holds(dir string, nodes []string) (string, error) {
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("list the open files of a process: %w", err)
	}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
		if err != nil {
			continue
		}
		for _, node := range nodes {
			if strings.HasSuffix(target, "/"+node) {
				return filepath.Base(target), nil
			}
		}
	}
	return "", nil
}
