// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
)

// CordonTaint is on all devices of a cordoned GPU but its monitor: on the GPU, its partitions and its NVLink groups.
const CordonTaint = "gpu.nvidia.com/cordoned"

// CordonAnnotation returns the name of the annotation that cordons a GPU of a Node. Its value is the effect of the
// taint, NoSchedule or NoExecute. Each GPU has an annotation of its own, so that two administrators can cordon two GPUs
// at once.
func CordonAnnotation(driver, gpu string) string { return cordonPrefix(driver) + gpu }

func cordonPrefix(driver string) string { return "cordon." + driver + "/" }

// Cordons are the effects of the cordons of a node's GPUs, by PCI address.
type Cordons map[string]resourceapi.DeviceTaintEffect

// ParseCordons reads a Node's annotations. Other values cordon the GPU as NoSchedule does. The error names them,
// and annotations without the name of a GPU.
func ParseCordons(driver string, annotations map[string]string) (Cordons, error) {
	out := Cordons{}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, ours := strings.CutPrefix(key, cordonPrefix(driver))
		if !ours {
			continue
		}
		d, err := gpu.ParseName(name)
		if err != nil || d.Kind != gpu.KindGPU {
			errs = append(errs, fmt.Errorf("annotation %s cordons nothing: %q is not the name of a GPU, such as "+
				"gpu-0000-1b-00-0", key, name))
			continue
		}
		effect := resourceapi.DeviceTaintEffect(annotations[key])
		if effect != resourceapi.DeviceTaintEffectNoSchedule && effect != resourceapi.DeviceTaintEffectNoExecute {
			errs = append(errs, fmt.Errorf("annotation %s has the value %q instead of NoSchedule or NoExecute, and "+
				"counts as NoSchedule", key, effect))
			effect = resourceapi.DeviceTaintEffectNoSchedule
		}
		out[d.PCIAddress] = effect
	}
	return out, errors.Join(errs...)
}

// Effect returns the stronger effect of the cordons of the GPUs with these PCI addresses, or "".
func (c Cordons) Effect(addresses ...string) (out resourceapi.DeviceTaintEffect) {
	for _, a := range addresses {
		if effect := c[a]; out == "" || effect == resourceapi.DeviceTaintEffectNoExecute {
			out = effect
		}
	}
	return out
}
