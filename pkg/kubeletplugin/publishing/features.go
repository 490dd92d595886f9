// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
)

// features are those of an API server that keep fields of a slice. A server silently drops the fields of a feature that it
// lacks, whatever its version, so the only source are the fields that it kept.
type features struct {
	// taints: DRADeviceTaints.
	taints bool
	// sharedDevices: DRAConsumableCapacity.
	sharedDevices bool
	// counters: DRAPartitionableDevices as it is from 1.35 on, with counters in slices of their own.
	counters bool
}

var allFeatures = features{taints: true, sharedDevices: true, counters: true}

func (f features) and(g features) features {
	return features{
		taints: f.taints && g.taints, sharedDevices: f.sharedDevices && g.sharedDevices, counters: f.counters && g.counters,
	}
}

func (f features) log() []any {
	return []any{"deviceTaints", f.taints, "consumableCapacity", f.sharedDevices, "partitionableDevices", f.counters}
}

// kept compares the slice that was sent with the one that came back.
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
			f.taints = false
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

// probeFeatures sends a slice with every field of interest as a dry run: the server says what it would keep, and no
// scheduler ever sees a device without its taint.
func probeFeatures(ctx context.Context, client resourcev1.ResourceSlicesGetter, driver, node, pool string) (features, error) {
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-" + driver + "-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node,
			Pool: resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{
				Name:                     "probe",
				Taints:                   []resourceapi.DeviceTaint{{Key: driver + "/probe", Effect: resourceapi.DeviceTaintEffectNoSchedule}},
				AllowMultipleAllocations: new(true),
				ConsumesCounters: []resourceapi.DeviceCounterConsumption{{
					CounterSet: "probe", Counters: map[string]resourceapi.Counter{"probe": {Value: resource.MustParse("1")}},
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
		// 1.34 wants the counters, and at most 32 of them, in the slice of the devices that consume them. A node's GPUs,
		// whose groups draw on one set of counters, do not fit into that.
		f.counters, slice.Spec.Devices[0].ConsumesCounters = false, nil
		got, err = client.ResourceSlices().Create(ctx, slice, options)
	}
	if err != nil {
		return features{}, err
	}
	return f.and(kept(slice, got)), nil
}
