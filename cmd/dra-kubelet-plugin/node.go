// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/native"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/health/watcher"
	"gpu-dra-driver/pkg/node/kubeletplugin"
	"gpu-dra-driver/pkg/node/kubeletplugin/podresources"
	"gpu-dra-driver/pkg/node/kubeletplugin/publishing"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/node/metrics"
	"gpu-dra-driver/pkg/node/sampler"
)

// node is the node and its API server.
type node struct {
	flags.Config
	machine *host.Host
	client  kubernetes.Interface
	metrics *metrics.Metrics
	events  *reporting.Events
	// changed requests a build of the node's slices.
	changed notify.Trigger
	cordons *publishing.Cordons
	// cgroups is the directory of the containers' cgroups, "" if no container's memory is limited.
	cgroups string
}

// newNode creates the plugin's directories.
func newNode(c flags.Config, machine *host.Host) (*node, error) {
	if err := machine.MkdirAll(LabelMkdir, 0o750, dataDir(c), c.KubeletRegistrarDir); err != nil {
		return nil, fmt.Errorf("make the plugin's directories: %w", err)
	}
	client, err := newClient(c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	m := metrics.New(metrics.Options{Driver: c.DriverName, Node: c.NodeName, Version: version})
	events, changed := reporting.NewEvents(client, c.NodeName, c.DriverName, m), notify.NewTrigger()
	cordons := publishing.NewCordons(client, c.DriverName, c.NodeName, events, changed)
	cgroups := host.Cgroups(c.SysRoot)
	_, noHook := os.Lstat(limitHook(c)) // A plugin that runs from a source tree can lack it.
	_, unused := os.Lstat(limitRequests(c))
	if noHook != nil || unused != nil && !c.ContainerMemoryLimits {
		cgroups = ""
	}
	return &node{c, machine, client, m, events, changed, cordons, cgroups}, nil
}

// kernel has the kernel's own lists.
func (n *node) kernel() nvml.Kernel { return nvml.Kernel{ProcRoot: n.ProcRoot, SysRoot: n.SysRoot} }

// gpus are the node's GPUs, the locks on them beside those of claims, and the device plugins that serve them.
type gpus struct {
	library nvml.Library
	root    *driverroot.Root
	scans   *inventory.Latest
	// scan requests a scan; the other Trigger requests the polls that follow an XID.
	scan, xids notify.Trigger
	switches   *inventory.Switches
	watcher    *watcher.Locks
	sampler    *sampler.Locks

	kubelet       *podresources.Kubelet
	devicePlugins *podresources.DevicePlugins
}

func newGPUs(n *node) (*gpus, error) {
	served, err := openRecords(n.machine, n.Config, podresources.DevicePluginSetting)
	if err != nil {
		return nil, err
	}
	root := driverroot.New(driverroot.Options{
		DriverRoot:     n.ContainerDriverRoot,
		HostDriverRoot: n.NvidiaDriverRoot,
		DevRoot:        n.DevRoot,
		HostDevRoot:    n.DevRoot,
		ProcRoot:       n.ProcRoot,
		HookPath:       filepath.Join(dataDir(n.Config), kubeletplugin.HookName),
		Load:           true,
	})
	own := "/dev"
	if n.DevRoot != "" && n.DevRoot != "/" {
		own = "" // NVML finds its nodes elsewhere.
	}
	scans, kubelet := inventory.NewLatest(),
		podresources.NewKubelet(filepath.Join(n.KubeletPodResourcesDir, "kubelet.sock"))
	return &gpus{
		library:  driverroot.Library{Library: native.New(n.ContainerDriverRoot), Root: root, OwnDev: own},
		root:     root,
		scans:    scans,
		scan:     notify.NewTrigger(),
		xids:     notify.NewTrigger(),
		switches: new(inventory.Switches),
		watcher:  watcher.NewLocks(),
		sampler:  sampler.NewLocks(),
		kubelet:  kubelet,
		devicePlugins: podresources.NewDevicePlugins(podresources.DevicePluginsOptions{
			Kubelet: kubelet,
			Scans:   scans,
			Records: served,
			Host:    n.machine,
			Lock:    settingLock(n.Config, podresources.DevicePluginSetting),
			Changed: n.changed,
			Metrics: n.metrics,
			Reports: n.events,
		}),
	}, nil
}

// Lock is called before operations that make a GPU disappear for a moment. It implements mig.Switches.
func (g *gpus) Lock(address string) {
	g.switches.Lock(address)
	g.watcher.Lock(address)
	g.sampler.Lock(address)
}

// Unlock implements mig.Switches.
func (g *gpus) Unlock(address string) {
	g.switches.Unlock(address)
	g.watcher.Unlock(address)
	g.sampler.Unlock(address)
}
