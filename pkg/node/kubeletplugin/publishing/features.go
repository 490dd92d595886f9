// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// features says which optional fields of a slice the API server keeps. A server silently drops the fields of a missing
// feature, in any version, so only the kept fields show its features.
type features struct {
	// taints: DRADeviceTaints. noEffectTaints: its effect None, since 1.35.
	taints, noEffectTaints bool
	// sharedDevices: DRAConsumableCapacity.
	sharedDevices bool
	// counters: DRAPartitionableDevices as of 1.35, with counters in their own slices.
	counters bool
	// heldShares: the server keeps allowMultipleAllocations, but only devices that claims share already allow several
	// allocations, because of a fault of the scheduler.
	heldShares bool
}

var allFeatures = features{taints: true, noEffectTaints: true, sharedDevices: true, counters: true}

func (f features) and(g features) features {
	return features{
		taints: f.taints && g.taints, noEffectTaints: f.noEffectTaints && g.noEffectTaints,
		sharedDevices: f.sharedDevices && g.sharedDevices, counters: f.counters && g.counters,
	}
}

func (f features) log() []any {
	return []any{"deviceTaints", f.taints, "consumableCapacity", f.sharedDevices, "partitionableDevices", f.counters}
}

// onlyForHeld reports whether the slices have devices, or have them as they are, only because claims hold them.
func (f features) onlyForHeld(held []resourceslices.Held) bool {
	return slices.ContainsFunc(held, func(h resourceslices.Held) bool {
		return !f.counters && (h.Device.Kind == gpu.KindMIG || h.Device.Kind == gpu.KindGroup) ||
			f.heldShares && (h.Share || h.Device.Kind == gpu.KindMonitor)
	})
}

func kept(sent, got *resourceapi.ResourceSlice) features {
	f := allFeatures
	if len(got.Spec.SharedCounters) < len(sent.Spec.SharedCounters) {
		f.counters = false
	}
	for i, d := range sent.Spec.Devices {
		if i >= len(got.Spec.Devices) {
			break
		}
		g := got.Spec.Devices[i]
		if len(g.Taints) < len(d.Taints) {
			f.taints, f.noEffectTaints = false, false
		}
		if d.AllowMultipleAllocations != nil && g.AllowMultipleAllocations == nil {
			f.sharedDevices = false
		}
		if len(g.ConsumesCounters) < len(d.ConsumesCounters) {
			f.counters = false
		}
	}
	return f
}

// probeFeatures sends a slice with all these fields as a dry run. Thus the features are known before the scheduler can
// see a device without its taint.
func probeFeatures(
	ctx context.Context, client resourcev1.ResourceSlicesGetter, driver, node, pool string,
) (features, error) {
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-" + driver + "-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node,
			Pool: resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{
				Name: "probe",
				Taints: []resourceapi.DeviceTaint{{Key: driver + "/probe",
					Effect: resourceapi.DeviceTaintEffectNone}},
				AllowMultipleAllocations: new(true),
				ConsumesCounters: []resourceapi.DeviceCounterConsumption{{
					CounterSet: "probe",
					Counters:   map[string]resourceapi.Counter{"probe": {Value: resource.MustParse("1")}},
				}},
			}},
		},
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	f := allFeatures
	got, err := client.ResourceSlices().Create(ctx, slice, options)
	if apierrors.IsInvalid(err) {
		f.noEffectTaints, slice.Spec.Devices[0].Taints[0].Effect = false, resourceapi.DeviceTaintEffectNoSchedule
		got, err = client.ResourceSlices().Create(ctx, slice, options)
	}
	if apierrors.IsInvalid(err) {
		// 1.34 requires counters, at most 32, in the slice of the consuming devices. The GPUs of a node exceed that,
		// because their groups need one counter set.
		f.counters, slice.Spec.Devices[0].ConsumesCounters = false, nil
		got, err = client.ResourceSlices().Create(ctx, slice, options)
	}
	if err != nil {
		return features{}, err
	}
	return f.and(kept(slice, got)), nil
}
