// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"

	resourceapi "k8s.io/api/resource/v1"
)

// Ours says whether a class was made here, and not by an administrator or a chart.
func (o Options) Ours(c *resourceapi.DeviceClass) bool { return c.Labels[ManagedBy] == o.Driver }

// Changed is a class of ours as it should be, false where it is so already. What others added to it stays: labels,
// annotations. Named says that the server keeps extended resource names; one that drops them is not written again.
func Changed(is, want *resourceapi.DeviceClass, named bool) (*resourceapi.DeviceClass, bool) {
	out := is.DeepCopy()
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	maps.Copy(out.Labels, want.Labels)
	want.Spec.DeepCopyInto(&out.Spec)
	if !named {
		out.Spec.ExtendedResourceName = is.Spec.ExtendedResourceName
	}
	return out, !equality.Semantic.DeepEqual(is, out)
}
