// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package deviceclasses says which DeviceClasses a cluster should have for the GPUs it has: one for each model, one for
// each MIG profile.
package deviceclasses

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"gpu-dra-driver/pkg/fleet"
	"gpu-dra-driver/pkg/gpu"
)

// ManagedBy is the label, with the driver's name as its value, of the classes that are made here: no other is changed or
// removed.
const ManagedBy = "gpu-dra-driver/managed-by"

// maxClasses bounds the classes, so that a node that publishes nonsense does not fill the API server.
const maxClasses = 500

// unusual is what the name of a model has a hyphen for in the name of its class.
var unusual = regexp.MustCompile(`[^a-z0-9]+`)

// Options are the administrator's choices.
type Options struct {
	// Driver is the driver's name.
	Driver string
	// Models and Profiles say whether there is a class for each.
	Models, Profiles bool
	// ModelPrefix begins the name of a model's class.
	ModelPrefix string
	// ResourcePrefix begins the extended resource name of a profile, as in nvidia.com/mig-1g.10gb. Empty: there is none.
	ResourcePrefix string
}

// Build gives the classes for devices of these kinds, by name, and says of which kinds there is none and why.
func Build(kinds map[fleet.Kind]int, o Options) (classes []*resourceapi.DeviceClass, problems []error) {
	models, profiles := map[string]bool{}, map[string]bool{}
	for k := range kinds {
		switch {
		case k.Type == gpu.KindGPU && k.Product != "" && o.Models:
			models[k.Product] = true
		case k.Type == gpu.KindMIG && k.Profile != "" && o.Profiles:
			profiles[k.Profile] = true
		}
	}
	made := map[string]string{}
	add := func(what string, c *resourceapi.DeviceClass) {
		name := c.Name
		if len(classes) == maxClasses {
			problems = append(problems, fmt.Errorf("no DeviceClass for %s: there are %d classes already, and a cluster has fewer models and profiles; see what nodes publish", what, maxClasses))
			return
		}
		if problem := validation.IsDNS1123Subdomain(name); len(problem) > 0 {
			problems = append(problems, fmt.Errorf("no DeviceClass for %s: %q cannot be its name: %s", what, name, problem[0]))
			return
		}
		if other, ok := made[name]; ok {
			problems = append(problems, fmt.Errorf("no DeviceClass for %s: its name %q is that of %s", what, name, other))
			return
		}
		made[name] = what
		classes = append(classes, c)
	}
	for _, product := range slices.Sorted(maps.Keys(models)) {
		add("the model "+product, o.class(o.ModelName(product), gpu.KindGPU, "productName", product))
	}
	for _, profile := range slices.Sorted(maps.Keys(profiles)) {
		c := o.class(o.ProfileName(profile), gpu.KindMIG, "profile", profile)
		if o.ResourcePrefix != "" {
			c.Spec.ExtendedResourceName = new(o.ResourcePrefix + label(profile))
		}
		add("the MIG profile "+profile, c)
	}
	return classes, problems
}

// ModelName is the name of a model's class: nvidia-h100-80gb-hbm3.gpu.nvidia.com.
func (o Options) ModelName(product string) string {
	name := unusual.ReplaceAllString(strings.ToLower(product), "-")
	return o.ModelPrefix + strings.Trim(name, "-") + "." + o.Driver
}

// ProfileName is the name of a profile's class: mig-1g.10gb.me.nvidia.com for the driver gpu.nvidia.com.
func (o Options) ProfileName(profile string) string {
	return "mig-" + label(profile) + "." + strings.TrimPrefix(o.Driver, "gpu.")
}

// label spells a profile for names: neither class nor resource names take a plus, and a minus must not look like one.
func label(profile string) string {
	return strings.NewReplacer("-", "-no-", "+", ".").Replace(profile)
}

// class selects on the driver first, then on what every device of the type has: a selector that fails on some device
// fails every allocation that looks at that device.
func (o Options) class(name string, kind gpu.Kind, attribute, value string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ManagedBy: o.Driver}},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.driver == %[1]q && device.attributes[%[1]q].type == %[2]q && "+
				"has(device.attributes[%[1]q].%[3]s) && device.attributes[%[1]q].%[3]s == %[4]q", o.Driver, string(kind), attribute, value),
		}}}},
	}
}

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
