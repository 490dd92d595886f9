// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Resources holds the classes of each extended resource, the scheduler's choice first. It chooses as the scheduler does
// (k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache): the newest class, and of equally old ones the
// one whose name sorts first.
type Resources map[corev1.ResourceName][]*resourceapi.DeviceClass

// ResourcesOf returns the extended resources of a cluster's classes, which can be in any order and nil.
func ResourcesOf(classes []*resourceapi.DeviceClass) Resources {
	out := Resources{}
	for _, class := range classes {
		if class == nil {
			continue
		}
		implicit := Implicit(class.Name)
		out[implicit] = append(out[implicit], class)
		if name := Explicit(class); byDevices(name) &&
			!strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix) {
			out[name] = append(out[name], class)
		}
	}
	for _, all := range out {
		slices.SortFunc(all, func(a, b *resourceapi.DeviceClass) int {
			return cmp.Or(cmp.Compare(b.CreationTimestamp.UnixNano(), a.CreationTimestamp.UnixNano()),
				cmp.Compare(a.Name, b.Name))
		})
	}
	return out
}

// Class returns the class of which a pod gets devices for a resource, or nil. The resources of a kubelet, such as
// `cpu`, have none.
func (r Resources) Class(name corev1.ResourceName) *resourceapi.DeviceClass {
	if all := r[name]; len(all) > 0 {
		return all[0]
	}
	return nil
}

// Shadows returns the class that the scheduler prefers for the resource that a class names, or nil. A scheduler that
// meets the shadowed class later than the other one does not know the shadowed one's implicit resource.
func (r Resources) Shadows(class *resourceapi.DeviceClass) *resourceapi.DeviceClass {
	if first := r.Class(Explicit(class)); first != nil && first.Name != class.Name {
		return first
	}
	return nil
}

// Implicit returns the resource that every class has by its name.
func Implicit(class string) corev1.ResourceName {
	return corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix + class)
}

// Explicit returns the resource that a class names, or "".
func Explicit(class *resourceapi.DeviceClass) corev1.ResourceName {
	if class.Spec.ExtendedResourceName == nil {
		return ""
	}
	return corev1.ResourceName(*class.Spec.ExtendedResourceName)
}

// byDevices reports whether devices can serve a resource: the scheduler looks up no class for the kubelet's own
// resources.
func byDevices(name corev1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	return ok && !strings.HasSuffix(domain, "kubernetes.io")
}
