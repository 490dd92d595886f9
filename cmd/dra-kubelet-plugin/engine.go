// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/computepolicy"
	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/host"
	limits "gpu-dra-driver/internal/memorylimit"
	"gpu-dra-driver/internal/memorylimit/requests"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/executor/mps"
	"gpu-dra-driver/pkg/claim/executor/timeslice"
	"gpu-dra-driver/pkg/claim/memorylimit"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/kubeletplugin"
	"gpu-dra-driver/pkg/partition/mig"
	"gpu-dra-driver/pkg/wire"
)

// claims prepares claims.
type claims struct {
	mig       *mig.Executor
	mps       *mps.Executor
	timeSlice *timeslice.Executor
	limiter   *memorylimit.Limiter
	hook      *hook
	root      root
	specs     *store.Store
	engine    *devicestate.Engine
}

// newClaims opens the records of claims and of the settings that executors change.
func newClaims(n *node, g *gpus, s *sharingSettings) (*claims, error) {
	records := map[string]*record.GPUs{}
	for _, setting := range []string{mig.Setting, mig.StuckSetting, mps.Setting, timeslice.Setting} {
		var err error
		if records[setting], err = openRecords(n.machine, n.Config, setting); err != nil {
			return nil, err
		}
	}
	sessions := sessionpool.New(g.library, n.kernel().HasGPU, n.events)
	daemons := mpsd.NewClient(filepath.Join(mpsDir(n.Config), mpsd.SocketName))
	partitions := mig.New(n.machine, sessions, records[mig.Setting], records[mig.StuckSetting], mig.Options{
		AllowReset: n.AllowReset, AdoptExternal: n.AdoptExternalMIG, Switches: g, ProcRoot: n.ProcRoot, Scans: g.scans,
		Changed: n.changed,
	})
	shares := mps.New(n.machine, sessions, daemons, records[mps.Setting], n.ProcRoot)
	shares.KeepMode = n.KeepComputeMode
	slices := timeslice.New(computepolicy.SMI{Root: n.ContainerDriverRoot}, records[timeslice.Setting])
	hook := &hook{
		machine: n.machine,
		sources: map[string]string{kubeletplugin.HookName: n.CDIHookPath},
		dir:     dataDir(n.Config),
		node:    g.root,
		reports: n.events,
	}
	if n.cgroups != "" {
		hook.sources[limits.HookName] = limitHook(n.Config)
	}
	specs := store.New(n.machine, n.CDIRoot, filepath.Join(stateDir(n.Config), "mounted"), n.DriverName)
	engine, err := devicestate.Open(devicestate.Options{
		Host:        n.machine,
		Dir:         stateDir(n.Config),
		Specs:       specs,
		Driver:      n.DriverName,
		Pool:        wire.PoolName(n.NodeName),
		MonitorPool: wire.MonitorPoolName(n.NodeName),
		Scans:       g.scans,
		Edits:       root{hook, g.root},
		Reports:     n.events,
		Kernel:      func() string { return inventory.Bindings(n.SysRoot) },
		Executors: map[string]devicestate.Executor{plan.MIGExecutor: partitions, sharing.MPSExecutor: shares,
			sharing.TimeSliceExecutor: slices},
		Settle:        []func(context.Context, *plan.Device) error{partitions.Settle, shares.Settle},
		Sharing:       s,
		NoMPS:         noMPS(n.Config),
		MPSDir:        mpsDir(n.Config),
		LimitHook:     filepath.Join(dataDir(n.Config), limits.HookName),
		LimitRequests: limitRequests(n.Config),
		DevicePlugins: g.devicePlugins,
		Metadata:      n.DeviceMetadata,
	})
	if err != nil {
		return nil, fmt.Errorf("open the plugin's state: %w", err)
	}
	if err := shareFiles(specs.Mounted(), ""); err != nil {
		n.events.Report(err)
	}
	limiter := memorylimit.New(requests.New(n.machine, limitRequests(n.Config)), sessions, n.cgroups, n.events)
	return &claims{partitions, shares, slices, limiter, hook, root{hook, g.root}, specs, engine}, nil
}

// shareFiles lets containers read the files that CDI specs mount, also those of an earlier release, on a node with
// SELinux. filesystems is as in host.ShareWithContainers.
func shareFiles(dir, filesystems string) error {
	err := host.ShareWithContainers(dir, filesystems)
	if err == nil {
		return nil
	}
	return &claimerror.Error{
		Reason: claimerror.HostFailure, Attempt: "let containers read the files of their claims", Cause: err,
		Remedy: "where SELinux enforces its policy, they read neither device metadata nor NCCL's topology, and reach " +
			"no MPS daemon: " +
			"run on the node, as root: chcon -R -t container_file_t " + dir,
	}
}

// dataDir holds the plugin's socket, its hook and its state.
func dataDir(c flags.Config) string { return filepath.Join(c.KubeletPluginsDir, c.DriverName) }

// limitHook is the hook's file in the image.
func limitHook(c flags.Config) string {
	return filepath.Join(filepath.Dir(c.CDIHookPath), limits.HookName)
}

// limitRequests holds the requests of containers with limits. Only a plugin with limits makes it.
func limitRequests(c flags.Config) string { return filepath.Join(dataDir(c), "memory-limits") }

func stateDir(c flags.Config) string { return filepath.Join(dataDir(c), "state") }

// mpsDir is the directory of MPS daemons. It is set even if the node no longer has MPS, so that claims of earlier
// configurations can be unprepared.
func mpsDir(c flags.Config) string {
	if c.MPSDir != "" {
		return c.MPSDir
	}
	return filepath.Join(dataDir(c), "mps")
}

// noMPS returns why the node has no MPS. It is empty if the node has MPS.
func noMPS(c flags.Config) string {
	if c.MPSDir != "" {
		return ""
	}
	return "MPS is not enabled on this node (--mps-dir is empty; chart value mps.enabled)"
}

// hook has the hooks of container edits. It is separate from them: while it cannot be installed, for example because
// the disk is full, specs are still compared with the kernel.
type hook struct {
	machine *host.Host
	// sources are their files in the image, by name; dir is the directory where the container runtime finds them.
	sources map[string]string
	dir     string
	// node has the ldconfig that the hook runs.
	node    *driverroot.Root
	reports notify.Reporter

	mu        sync.Mutex
	installed bool
}

// Install installs the hooks once, and again if one was deleted.
func (h *hook) Install(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for name, source := range h.sources {
		if _, err := os.Lstat(filepath.Join(h.dir, name)); h.installed && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := kubeletplugin.InstallHook(ctx, h.machine, source, h.dir, name); err != nil {
			errs = append(errs, fmt.Errorf("%w; set --nvidia-cdi-hook-path to the hook in the plugin's image", err))
		}
	}
	h.installed = len(errs) == 0
	return errors.Join(errs...)
}

// hookInterval is the interval of checks for the hook, which a restarting container needs without a Prepare.
const hookInterval = 10 * time.Second

// Run installs the hook, again whenever it was deleted. Publishing need not wait for its copy; Prepare does. It tries
// the hook until it has run once.
func (h *hook) Run(ctx context.Context) {
	last, ran, problem := "", false, ""
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := h.Install(ctx)
		if err != nil && err.Error() != last {
			klog.FromContext(ctx).Error(err,
				"Installing the CDI hook failed; containers cannot get a GPU until it succeeds")
		}
		last = fmt.Sprint(err)
		if err != nil || ran {
			return
		}
		err = kubeletplugin.CheckHook(ctx, h.dir, h.node)
		if ran = err == nil; !ran && err.Error() != problem && ctx.Err() == nil {
			problem = err.Error()
			h.reports.Report(err)
		}
	}, hookInterval)
}

// root is the driver root for planned devices. It implements devicestate.Edits.
type root struct {
	*hook
	*driverroot.Root
}

func (r root) GPU(ctx context.Context, device plan.Device) (specs.ContainerEdits, error) {
	return r.Root.GPU(ctx, driverDevice(device))
}

// Capability implements podresources.Root.
func (r root) Capability(d plan.Device) (string, error) {
	node, err := r.ComputeCapability(driverDevice(d))
	if errors.Is(err, driverroot.ErrNoPartition) || errors.Is(err, driverroot.ErrNoGPU) {
		return "", nil
	}
	return node, err
}

// driverDevice converts a planned device to the driver root's type. A claim with admin access gets the GPU instead of
// the partition.
func driverDevice(d plan.Device) driverroot.Device {
	out := driverroot.Device{
		Name: d.Name, PCIAddress: d.PCIAddress, UUID: d.UUID, Minor: d.Minor, Switches: d.Kind == gpu.KindGroup,
	}
	if d.Kind == gpu.KindMIG && !d.Admin {
		p := d.Partition
		out.Partition = &driverroot.Partition{UUID: p.UUID, GPUInstance: p.GPUInstance,
			ComputeInstance: p.ComputeInstance}
	}
	return out
}
