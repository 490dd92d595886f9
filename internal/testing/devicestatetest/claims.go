// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// Stepped is the label of a claim whose plan has steps that write files, which a crash can leave behind.
const Stepped = "stepped"

// ClaimID returns the kubelet's reference to a claim.
func ClaimID(uid string) plan.Claim {
	return plan.Claim{Namespace: "default", Name: "claim-" + uid, UID: uid}
}

// Claim creates an allocated claim. Devices are written as "0" (GPU 0), "monitor 0", "group 0 2" (2 GPUs from GPU 0 on)
// or "0 1g.10gb 4" (its partition at slice 4).
func (e *Env) Claim(uid string, devices ...string) *resourceapi.ResourceClaim {
	id := ClaimID(uid)
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: id.Namespace, Name: id.Name,
		UID: types.UID(uid)}}
	e.Allocate(c, devices...)
	e.Claims[uid] = c
	return c
}

func (e *Env) Allocate(c *resourceapi.ResourceClaim, devices ...string) {
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for i, text := range devices {
		d := e.device(text)
		r := resourceapi.DeviceRequestAllocationResult{
			Request: fmt.Sprintf("r%d", i),
			Driver:  Driver,
			Pool:    Pool,
			Device:  d.Name(),
		}
		if d.Kind == gpu.KindMonitor {
			admin := true
			r.AdminAccess, r.Pool = &admin, MonitorPool
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, r)
	}
}

func (e *Env) device(text string) (d gpu.Device) {
	var n int
	if _, err := fmt.Sscanf(text, "monitor %d", &n); err == nil {
		d.Kind = gpu.KindMonitor
	} else if _, err := fmt.Sscanf(text, "group %d %d", &n, &d.Size); err == nil {
		d.Kind = gpu.KindGroup
	} else if _, err := fmt.Sscanf(text, "%d %s %d", &n, &d.Profile, &d.Start); err == nil {
		d.Kind = gpu.KindMIG
	} else if _, err := fmt.Sscanf(text, "%d", &n); err == nil {
		d = gpu.Device{Kind: gpu.KindGPU}
	} else {
		e.T.Fatalf("device %q: %v", text, err)
	}
	d.PCIAddress = e.Address(n)
	return d
}

// Address is the PCI address of a GPU.
func (e *Env) Address(n int) string {
	if e.Sim != nil {
		return e.Sim.State().GPUs[n].Address
	}
	return Address(n)
}

func (e *Env) SteppedClaim(uid string, devices ...string) *resourceapi.ResourceClaim {
	c := e.Claim(uid, devices...)
	c.Labels = map[string]string{Stepped: uid}
	return c
}

// GroupClaim creates an allocated claim for a group of GPUs, whose containers get its topology.
func (e *Env) GroupClaim(uid string, first, size int) *resourceapi.ResourceClaim {
	c := e.Claim(uid, fmt.Sprintf("group %d %d", first, size))
	configure(c, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig",
		"topology":{"cudaVisibleDevices":true,"ncclTopology":true}}`)
	return c
}

// SharedClaim creates an allocated claim with a request for some GiB of each device, 0 for the whole device.
func (e *Env) SharedClaim(uid string, gib int, parameters string, devices ...string) *resourceapi.ResourceClaim {
	c := e.Claim(uid, devices...)
	for i := range c.Status.Allocation.Devices.Results {
		if gib > 0 {
			r := &c.Status.Allocation.Devices.Results[i]
			r.ShareID = new(types.UID(fmt.Sprintf("share-%s-%d", uid, i)))
			r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
				"memory": resource.MustParse(fmt.Sprintf("%dGi", gib+i)),
			}
		}
	}
	if parameters != "" {
		configure(c, parameters)
	}
	return c
}

func configure(c *resourceapi.ResourceClaim, parameters string) {
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
		}},
	}}
}
