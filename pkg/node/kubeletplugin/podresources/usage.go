// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/metrics"
)

// ignoredProcesses are names, as the kernel cuts them, of processes that open GPUs without using them. MPS daemons use
// them for other processes, and survive a killed pod.
var ignoredProcesses = []string{"nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-cuda-mps"}

// Usage finds out from the kubelet and the process table whether a deleted claim is still in use.
type Usage struct {
	kubelet *Kubelet
	o       UsageOptions
}

// Root is the driver root.
type Root interface {
	// Capability returns the device node of a MIG device's compute instance, or "" if the partition is gone. All
	// processes on a GPU open the GPU's node, but only users of the partition open its capability.
	Capability(d plan.Device) (string, error)
}

// UsageOptions configures a Usage; all fields but Ignored are required.
type UsageOptions struct {
	// ProcRoot is the node's /proc, of its own PID namespace.
	ProcRoot string
	// Scans has the current minor numbers.
	Scans *inventory.Latest
	Root  Root
	// Records has the devices of all claims: an unknown claim may be on any GPU that no other claim holds. It reads
	// them anew, because a GPU is released by this answer.
	Records plan.Held
	// Ignored are the names of further processes that open GPUs without using them.
	Ignored []string
}

func NewUsage(kubelet *Kubelet, o UsageOptions) *Usage {
	ignored := slices.Clone(ignoredProcesses)
	for _, name := range o.Ignored {
		ignored = append(ignored, name[:min(len(name), 15)]) // The kernel cuts names.
	}
	o.Ignored = ignored
	return &Usage{kubelet, o}
}

// ReferencedByKubelet implements devicestate.Usage with one question for all claims. It compares the claim's UID with
// those in CDI devices, so that a new claim with the same name is not mistaken for the old one. Before the kubelet has
// CDI devices, it compares the name.
func (u *Usage) ReferencedByKubelet(ctx context.Context) (func(plan.Claim) bool, error) {
	var devices []string
	unprepared := map[[2]string]bool{}
	err := u.kubelet.call(ctx, func(ctx context.Context, client podresources.PodResourcesListerClient) error {
		return containers(ctx, client, func(_ *podresources.PodResources, c *podresources.ContainerResources) {
			for _, r := range c.GetDynamicResources() {
				before := len(devices)
				devices = slices.AppendSeq(devices, devicesOf(r))
				if len(devices) == before {
					unprepared[[2]string{r.GetClaimNamespace(), r.GetClaimName()}] = true
				}
			}
		})
	})
	slices.Sort(devices)
	return func(claim plan.Claim) bool {
		prefix := claim.UID + "-"
		i, _ := slices.BinarySearch(devices, prefix)
		return i < len(devices) && strings.HasPrefix(devices[i], prefix) ||
			claim.Name != "" && unprepared[[2]string{claim.Namespace, claim.Name}]
	}, err
}

// devicesOf returns the names of a claim's CDI devices, which begin with the claim's UID.
func devicesOf(r *podresources.DynamicResource) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, c := range r.GetClaimResources() {
			for _, d := range c.GetCdiDevices() {
				if _, device, ofClaim := strings.Cut(d.GetName(), "/"+cdi.Class+"="); ofClaim && !yield(device) {
					return
				}
			}
		}
	}
}

// Users implements metrics.Users.
func (u *Usage) Users(ctx context.Context) (map[string][]metrics.User, error) {
	users := map[string][]metrics.User{}
	err := u.kubelet.call(ctx, func(ctx context.Context, client podresources.PodResourcesListerClient) error {
		return containers(ctx, client, func(pod *podresources.PodResources, c *podresources.ContainerResources) {
			for _, r := range c.GetDynamicResources() {
				for device := range devicesOf(r) {
					user := metrics.User{Pod: pod.GetName(), Container: c.GetName()}
					if !slices.Contains(users[device], user) { // The kubelet repeats a claim for each of its requests.
						users[device] = append(users[device], user)
					}
				}
			}
		})
	})
	return users, err
}

// OpenedBy implements devicestate.Usage. It ignores devices with admin access, because monitoring must not delay a
// release. It ignores shares too, because co-tenants open the same device; for shares the kubelet's answer decides.
func (u *Usage) OpenedBy(ctx context.Context, devices []plan.Device) (string, error) {
	if len(devices) == 0 {
		return u.ofUnknown(ctx)
	}
	nodes, err := u.deviceNodes(devices)
	if err != nil || len(nodes) == 0 {
		return "", err
	}
	return u.user(ctx, func(file string) bool { return slices.ContainsFunc(nodes, isNode(file)) })
}

// gpuNode matches the device node of a GPU.
var gpuNode = regexp.MustCompile(`/(dev/nvidia\d+)$`)

// ofUnknown returns a process that may use the devices of an unknown claim: it has a GPU open that no other claim
// holds. A GPU that no scan could read is one of these.
func (u *Usage) ofUnknown(ctx context.Context) (string, error) {
	plans, _, err := u.o.Records.Held()
	if err != nil {
		return "", err
	}
	snapshot, taken := u.o.Scans.Snapshot(), map[string]bool{}
	for _, p := range plans {
		for _, d := range p.Devices {
			if !d.Admin {
				taken[node(snapshot, d)] = true
			}
		}
	}
	return u.user(ctx, func(file string) bool {
		found := gpuNode.FindStringSubmatch(file)
		return found != nil && !taken[found[1]]
	})
}

// user returns a process with a device node open, unless it only monitors GPUs.
func (u *Usage) user(ctx context.Context, wanted func(file string) bool) (string, error) {
	// The plugin has the GPUs of claims open to wait for XIDs. A name would not do: a tenant can choose the same.
	own, _ := os.Readlink(filepath.Join(u.o.ProcRoot, "self"))
	return u.search(ctx, openFiles, wanted, func(pid, name string, open []string) bool {
		return pid == own || u.monitors(open) || slices.Contains(u.o.Ignored, name)
	})
}

// resetIgnored are processes of the driver. nvidia-smi resets a GPU that they have open, or refuses.
var resetIgnored = []string{"nvidia-persiste", "nv-fabricmanage"}

// Client returns a process that has a GPU open, or "". Monitoring agents and this plugin count too.
func (u *Usage) Client(ctx context.Context, g gpu.GPU) (string, error) {
	wanted := func(file string) bool { return isNode(file)(nodeOf(g.Minor)) }
	return u.search(ctx, openFiles, wanted, func(_, name string, _ []string) bool {
		return slices.Contains(resetIgnored, name)
	})
}

// search returns a process that has a wanted device node open, unless ignored says otherwise. files returns the files
// that the process of a directory has open.
func (u *Usage) search(
	ctx context.Context, files func(dir string) ([]string, error), wanted func(file string) bool,
	ignored func(pid, name string, open []string) bool,
) (string, error) {
	processes, err := os.ReadDir(u.o.ProcRoot)
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
		dir := filepath.Join(u.o.ProcRoot, p.Name())
		open, err := files(dir)
		if err != nil {
			return "", err
		}
		at := slices.IndexFunc(open, wanted)
		if at < 0 {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		comm := strings.TrimSpace(string(name))
		if !ignored(p.Name(), comm, open) {
			return fmt.Sprintf("process %s (%s, with %s open)", p.Name(), comm, filepath.Base(open[at])), nil
		}
	}
	return "", nil
}

// monitors reports whether a process with these open files is a monitoring agent: it has every GPU open, but not the
// device of unified memory, which each compute context needs. A single GPU is not evidence.
func (u *Usage) monitors(open []string) bool {
	gpus := u.o.Scans.Snapshot().GPUs
	return len(gpus) > 1 &&
		!slices.ContainsFunc(open, func(file string) bool { return isNode(file)("dev/nvidia-uvm") }) &&
		!slices.ContainsFunc(gpus, func(g gpu.GPU) bool {
			return !slices.ContainsFunc(open, func(file string) bool { return isNode(file)(nodeOf(g.Minor)) })
		})
}

func nodeOf(minor int) string { return fmt.Sprintf("dev/nvidia%d", minor) }

// isNode returns a function that compares a file with the paths of device nodes below the root.
func isNode(file string) func(node string) bool {
	return func(node string) bool { return strings.HasSuffix(file, "/"+node) }
}

// deviceNodes returns the device nodes to search for, as paths below the root.
func (u *Usage) deviceNodes(devices []plan.Device) (nodes []string, err error) {
	snapshot := u.o.Scans.Snapshot()
	for _, d := range devices {
		switch {
		case d.Admin || d.Partial():
		case d.Kind == gpu.KindMIG:
			node, err := u.o.Root.Capability(d)
			if err != nil {
				return nil, fmt.Errorf("find the device node of %s: %w", d.Name, err)
			}
			if node != "" {
				nodes = append(nodes, "dev/nvidia-caps/"+node)
			}
		default:
			nodes = append(nodes, node(snapshot, d))
		}
	}
	return nodes, nil
}

// node returns the device node of a device's GPU. The number of the plan may be from an earlier boot.
func node(snapshot gpu.Snapshot, d plan.Device) string {
	if g, ok := snapshot.ByAddress(d.PCIAddress); ok {
		return nodeOf(g.Minor)
	}
	return nodeOf(d.Minor)
}

// openFiles returns the files that a process has open. A process that just ended has none.
func openFiles(dir string) (open []string, err error) {
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the open files of a process: %w", err)
	}
	for _, fd := range fds {
		// Otherwise it was just closed.
		if target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil {
			open = append(open, target)
		}
	}
	return open, nil
}
