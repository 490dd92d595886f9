// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package deviceclasses builds the DeviceClasses for a cluster's GPUs: one for each model and each MIG profile.
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

// ManagedBy is the label of the classes that this package builds; its value is the driver's name. The controller never
// changes or removes a class without it.
const ManagedBy = "gpu-dra-driver/managed-by"

// maxClasses keeps a faulty node from filling the API server with classes.
const maxClasses = 500

// unusual matches the parts of a model's name that become a hyphen in the class name.
var unusual = regexp.MustCompile(`[^a-z0-9]+`)

// Options are the administrator's choices.
type Options struct {
	Driver string
	// Models and Profiles enable one class for each model and for each MIG profile.
	Models, Profiles bool
	// ModelPrefix begins the name of a model's class.
	ModelPrefix string
	// GPUs enables the class of all GPUs, which the chart also creates, with the extended resource name GPUResource.
	GPUs        bool
	GPUResource string
	// ResourcePrefix begins a profile's extended resource name, as in nvidia.com/mig-1g.10gb. Empty: no such name.
	ResourcePrefix string
}

// Build returns the classes for these kinds of devices, by name, and an error for each kind that gets no class.
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
			problems = append(problems, fmt.Errorf("no DeviceClass for %s: the limit of %d classes is reached. Look for a node that publishes wrong models or profiles", what, maxClasses))
			return
		}
		if problem := validation.IsDNS1123Subdomain(name); len(problem) > 0 {
			problems = append(problems, fmt.Errorf("no DeviceClass for %s: the name %q is invalid: %s", what, name, problem[0]))
			return
		}
		if other, ok := made[name]; ok {
			problems = append(problems, fmt.Errorf("no DeviceClass for %s: %s has the same name %q", what, name, other))
			return
		}
		made[name] = what
		classes = append(classes, c)
	}
	if o.GPUs {
		c := o.class(o.Driver, gpu.KindGPU, "", "")
		if o.GPUResource != "" {
			c.Spec.ExtendedResourceName = &o.GPUResource
		}
		add("all GPUs", c)
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

// ProfileName is the name of a profile's class: mig-1g.10gb.me.nvidia.com if the driver is gpu.nvidia.com.
func (o Options) ProfileName(profile string) string {
	return "mig-" + label(profile) + "." + strings.TrimPrefix(o.Driver, "gpu.")
}

// label spells a profile for class and resource names: "+" becomes "." and "-" becomes "-no-", which keeps them
// distinct.
func label(profile string) string {
	return strings.NewReplacer("-", "-no-", "+", ".").Replace(profile)
}

// class selects by driver first, then by attributes that every device of the type has. A selector that fails on one
// device fails every allocation that reaches this device.
func (o Options) class(name string, kind gpu.Kind, attribute, value string) *resourceapi.DeviceClass {
	expression := fmt.Sprintf("device.driver == %[1]q && device.attributes[%[1]q].type == %[2]q", o.Driver, string(kind))
	if attribute != "" {
		expression += fmt.Sprintf(" && has(device.attributes[%[1]q].%[2]s) && device.attributes[%[1]q].%[2]s == %[3]q",
			o.Driver, attribute, value)
	}
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ManagedBy: o.Driver}},
		Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
		},
	}
}

// Ours reports whether the controller made a class; administrators and charts make classes too.
func (o Options) Ours(c *resourceapi.DeviceClass) bool { return c.Labels[ManagedBy] == o.Driver }

// Changed returns a managed class with the wanted spec, and whether it differs. It keeps labels and annotations of
// others. named means that the API server keeps extended resource names; otherwise Changed ignores them.
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
