// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command nic is a DRA driver of simulated network cards, for tests of claims for a GPU and a device of another driver. It
// publishes the cards of its arguments, and its Prepare does nothing. It ends when its standard input is closed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nic:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("nic", flag.ContinueOnError)
	kubeconfig := fs.String("kubeconfig", "", "`file` of the API server")
	node := fs.String("node", "", "`name` of the node")
	name := fs.String("driver", "nic.example.com", "`name` of the driver")
	dir := fs.String("kubelet", "/var/lib/kubelet", "the kubelet's `directory`")
	if err := fs.Parse(args); err != nil {
		return err
	}
	devices, err := cards(fs.Args())
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(*dir, "plugins", *name)
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(data) }()
	helper, err := kubeletplugin.Start(ctx, plugin{*name}, kubeletplugin.DriverName(*name), kubeletplugin.NodeName(*node), kubeletplugin.KubeClient(client),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(filepath.Join(*dir, "plugins_registry")))
	if err != nil {
		return err
	}
	defer helper.Stop()
	pools := map[string]resourceslice.Pool{*node: {Slices: []resourceslice.Slice{{Devices: devices}}}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// cards parses name,pcieRoot,numaNode; either may be empty.
func cards(args []string) ([]resourceapi.Device, error) {
	var out []resourceapi.Device
	for _, arg := range args {
		parts := strings.Split(arg, ",")
		if len(parts) != 3 {
			return nil, fmt.Errorf("%q is not name,pcieRoot,numaNode", arg)
		}
		d := resourceapi.Device{Name: parts[0], Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
		if parts[1] != "" {
			d.Attributes[deviceattribute.StandardDeviceAttributePCIeRoot] = resourceapi.DeviceAttribute{StringValue: &parts[1]}
		}
		if parts[2] != "" {
			n, err := strconv.ParseInt(parts[2], 10, 64)
			if err != nil {
				return nil, err
			}
			d.Attributes[deviceattribute.StandardDeviceAttributeNUMANode] = resourceapi.DeviceAttribute{IntValue: &n}
		}
		out = append(out, d)
	}
	return out, nil
}

type plugin struct{ driver string }

func (p plugin) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		var result kubeletplugin.PrepareResult
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == p.driver {
				result.Devices = append(result.Devices, kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device})
			}
		}
		out[c.UID] = result
	}
	return out, nil
}

func (plugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, c := range claims {
		out[c.UID] = nil
	}
	return out, nil
}

func (plugin) HandleError(_ context.Context, err error, msg string) {
	fmt.Fprintln(os.Stderr, "nic:", msg, err)
}

func (plugin) WatchHealthStatus(ctx context.Context, _ chan<- kubeletplugin.DeviceHealthReport) error {
	<-ctx.Done()
	return nil
}
