// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	env "gpu-dra-driver/internal/testing/kubeletplugintest"
)

func TestKept_DroppedCounters_AreNoticed(t *testing.T) {
	set := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{SharedCounters: []resourceapi.CounterSet{{Name: "s"}}}}
	device := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{{
		Name: "d", ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "s"}},
	}}}}
	for name, sent := range map[string]resourceapi.ResourceSlice{"shared": set, "consumed": device} {
		if got := kept(&sent, &sent); !got.counters {
			t.Errorf("%s counters that were kept count as dropped", name)
		}
		dropped := sent.DeepCopy()
		dropped.Spec.SharedCounters = nil
		for i := range dropped.Spec.Devices {
			dropped.Spec.Devices[i].ConsumesCounters = nil
		}
		if got := kept(&sent, dropped); got.counters || !got.taints {
			t.Errorf("%s counters: %+v", name, got)
		}
	}
	if f := allFeatures.and(features{taints: true}); f.counters || f.sharedDevices || !f.taints {
		t.Errorf("%+v", f)
	}
}

// TestProbeFeatures_InvalidFields_AreLeftOut plays 1.34 with the feature gates on, a server that lacks the effect None only,
// and newer servers.
func TestProbeFeatures_InvalidFields_AreLeftOut(t *testing.T) {
	t.Parallel()
	for _, want := range []features{
		{taints: true, sharedDevices: true}, {taints: true, sharedDevices: true, counters: true}, allFeatures,
	} {
		e := env.New(t)
		e.Client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
			o := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice).DeepCopy()
			d := o.Spec.Devices[0]
			if !want.counters && len(d.ConsumesCounters) > 0 || !want.noEffectTaints && d.Taints[0].Effect == resourceapi.DeviceTaintEffectNone {
				return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "probe", nil)
			}
			return true, o, nil
		})
		f, err := probeFeatures(t.Context(), e.Client.ResourceV1(), "gpu.nvidia.com", "n1", "n1/gpu")
		if err != nil || f != want {
			t.Errorf("%+v, %v, want %+v", f, err, want)
		}
	}
}
