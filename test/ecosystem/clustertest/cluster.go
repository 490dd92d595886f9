// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package clustertest makes the objects that schedulers and queues read: the slices of predicted nodes, and the DeviceClasses
// that the controller makes of them.
package clustertest

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/nodetemplate"
)

// Driver is the driver's name.
const Driver = "gpu.nvidia.com"

// Predict returns the devices of a new node with a board of the catalogue.
func Predict(t testing.TB, board, node string) nodetemplate.Template {
	t.Helper()
	out, err := nodetemplate.FromBoard(board, Driver, node)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Classes returns the DeviceClasses for the devices of nodes, with all of the controller's kinds enabled, and the chart's
// classes that are not of them.
func Classes(t testing.TB, nodes ...nodetemplate.Template) (out []*resourceapi.DeviceClass) {
	t.Helper()
	publishers := map[pool.Kind]int{}
	for _, n := range nodes {
		for _, s := range n.Slices {
			for _, d := range s.Spec.Devices {
				publishers[kind(d)]++
			}
		}
	}
	classes, problems := deviceclasses.Build(publishers, nil, deviceclasses.Options{
		Driver: Driver, Models: true, Profiles: true, Groups: true, GPUs: true, GPUResource: "nvidia.com/gpu", ResourcePrefix: "nvidia.com/mig-",
	})
	for _, err := range problems {
		t.Fatal(err)
	}
	for _, c := range classes {
		out = append(out, c.DeviceClass)
	}
	for name, kind := range map[string]gpu.Kind{"mig.nvidia.com": gpu.KindMIG, "nvlink.gpu.nvidia.com": gpu.KindGroup, "monitor.gpu.nvidia.com": gpu.KindMonitor} {
		c := &resourceapi.DeviceClass{}
		c.Name = name
		c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: "device.driver == '" + Driver + "' && device.attributes['" + Driver + "'].type == '" + string(kind) + "'",
		}}}
		out = append(out, c)
	}
	return out
}

func kind(d resourceapi.Device) pool.Kind {
	text := func(name resourceapi.QualifiedName) string {
		if v := d.Attributes[name].StringValue; v != nil {
			return *v
		}
		return ""
	}
	k := pool.Kind{Type: gpu.Kind(text("type")), Product: text("productName"), Profile: text("profile"), GPUs: 1}
	if n := d.Attributes["gpuCount"].IntValue; n != nil {
		k.GPUs = int(*n)
	}
	return k
}
