// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package deviceclasses builds the DeviceClasses for a cluster's GPUs: one for each model, each MIG profile and each
// size of NVLink groups.
package deviceclasses

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
)

// ManagedBy is the label of the classes that this package builds; its value is the driver's name. The controller never
// changes or removes a class without it.
const ManagedBy = "gpu-dra-driver/managed-by"

// unusual matches the parts of a model's name that become a hyphen in the class name.
var unusual = regexp.MustCompile(`[^a-z0-9]+`)

// Options are the administrator's choices.
type Options struct {
	Driver string
	// Models, Profiles and Groups enable one class for each model, MIG profile and size of NVLink groups.
	Models, Profiles, Groups bool
	// ModelPrefix begins the name of a model's class.
	ModelPrefix string
	// GPUs enables the class of all GPUs, which the chart also creates, with the extended resource name GPUResource.
	GPUs        bool
	GPUResource string
	// ResourcePrefix begins a profile's extended resource name, as in nvidia.com/mig-1g.10gb. Empty: no such name, and
	// no classes of renamed shares.
	ResourcePrefix string
}

// renamed is the attribute of devices whose shares the device plugin would rename.
const renamed = "renameByDefault"

// Class is a wanted DeviceClass.
type Class struct {
	*resourceapi.DeviceClass
	// Nodes is the number of nodes that publish its devices, without faulty ones; 0 for the class of all GPUs.
	Nodes int
}

// Build returns the classes for these kinds of devices, the kinds of most nodes first, and an error for each kind that
// gets no class. publishers holds the number of nodes for each kind, existing the managed classes by name. If two
// models of as many nodes have one class name, its class stays. The other model's class has a hash in its name.
func Build(
	publishers map[pool.Kind]int, existing map[string]*resourceapi.DeviceClass, o Options,
) (classes []Class, problems []error) {
	type choice struct {
		what, name       string
		kind             gpu.Kind
		attribute, value string
		// resource is the extended resource.
		resource string
	}
	choices := map[choice]int{}
	for k, nodes := range publishers {
		profile := k.Type == gpu.KindMIG && gpu.ValidProfile(k.Profile)
		switch {
		// Shares have the names that the device plugin gives them.
		case k.Renamed && o.ResourcePrefix == "":
		case k.Renamed && k.Type == gpu.KindGPU:
			resource := cmp.Or(o.GPUResource, "nvidia.com/gpu") + ".shared"
			choices[choice{"shares of", "shared." + o.Driver, k.Type, renamed, "GPUs", resource}] += nodes
		case k.Renamed && profile:
			name := "mig-" + ProfileLabel(k.Profile) + ".shared." + o.domain()
			resource := o.profileResource(k.Profile) + ".shared"
			choices[choice{"shares of", name, k.Type, renamed, k.Profile, resource}] += nodes
		case k.Renamed:
		case k.Type == gpu.KindGPU && k.Product != "" && o.Models:
			choices[choice{"model", o.modelName(k.Product), k.Type, "productName", k.Product, ""}] += nodes
		case profile && o.Profiles:
			name, resource := o.profileName(k.Profile), o.profileResource(k.Profile)
			choices[choice{"MIG profile", name, k.Type, "profile", k.Profile, resource}] += nodes
		case k.Type == gpu.KindGroup && k.GPUs > 1 && o.Groups:
			size := strconv.Itoa(k.GPUs)
			name := "nvlink-" + size + "." + o.Driver
			choices[choice{"NVLink groups of", name, k.Type, "gpuCount", size, ""}] += nodes
		}
	}
	if o.GPUs {
		c := o.class(o.Driver, gpu.KindGPU, "", "")
		if o.GPUResource != "" {
			c.Spec.ExtendedResourceName = &o.GPUResource
		}
		classes = append(classes, Class{c, 0})
	}
	exists := map[choice]int{}
	for c := range choices {
		if class := existing[c.name]; class != nil &&
			equality.Semantic.DeepEqual(class.Spec.Selectors,
				o.class(c.name, c.kind, c.attribute, c.value).Spec.Selectors) {
			exists[c] = 1
		}
	}
	made := map[string]string{}
	for _, c := range slices.SortedFunc(maps.Keys(choices), func(a, b choice) int {
		return cmp.Or(cmp.Compare(choices[b], choices[a]), cmp.Compare(exists[b], exists[a]),
			cmp.Compare(a.what, b.what), cmp.Compare(a.value, b.value))
	}) {
		nodes := choices[c]
		if _, taken := made[c.name]; taken && c.attribute == "productName" {
			c.name = o.distinctName(c.value)
		}
		if problem := validation.IsDNS1123Subdomain(c.name); len(problem) > 0 {
			problems = append(problems, fmt.Errorf("no DeviceClass for the %s %s: the name %q is invalid: %s", c.what,
				c.value, c.name, problem[0]))
			continue
		}
		if first, ok := made[c.name]; ok {
			problems = append(problems, fmt.Errorf("no DeviceClass for the %s %s: %s has the same name %q", c.what,
				c.value, first, c.name))
			continue
		}
		made[c.name] = c.value
		class := o.class(c.name, c.kind, c.attribute, c.value)
		if c.resource != "" {
			class.Spec.ExtendedResourceName = &c.resource
		}
		classes = append(classes, Class{class, nodes})
	}
	return classes, problems
}

// reserved matches the beginnings of names of other classes than those of models.
var reserved = regexp.MustCompile(`^(mig|nvlink|monitor|shared)(-|$)`)

// hashLength is the length of a hyphen and the hash in a model's name.
const hashLength = 7

// modelName is the name of a model's class: nvidia-h100-80gb-hbm3.gpu.nvidia.com. The end of a long model becomes a
// hash, because Kueue and extended resources allow 63 bytes. A name without room for that stays long.
func (o Options) modelName(product string) string {
	prefix, model, room := o.model(product)
	if len(model) > room && room > hashLength {
		model = withHash(model, model, room)
	}
	return prefix + model + "." + o.Driver
}

// distinctName is the name of a model's class if another class has the name by modelName: other characters or another
// case of the same model, or the same hash. Its hash is of all characters, and quoted, so that it differs from that of
// a long model.
func (o Options) distinctName(product string) string {
	prefix, model, room := o.model(product)
	if room <= hashLength {
		room = len(model) + hashLength
	}
	return prefix + withHash(model, strconv.Quote(product), room) + "." + o.Driver
}

// model returns the parts of the name of a model's class, and the room for the second one. Names of other classes are
// not for models.
func (o Options) model(product string) (prefix, model string, room int) {
	prefix, model = o.ModelPrefix, strings.Trim(unusual.ReplaceAllString(strings.ToLower(product), "-"), "-")
	if reserved.MatchString(prefix + model) {
		prefix = "model-" + prefix
	}
	return prefix, model, validation.DNS1123LabelMaxLength - len(prefix) - len("."+o.Driver)
}

// withHash ends a model's name with a hash of a text. It fits into the room.
func withHash(model, of string, room int) string {
	hash := sha256.Sum256([]byte(of))
	return fmt.Sprintf("%s-%x", strings.TrimRight(model[:min(len(model), room-hashLength)], "-"), hash[:hashLength/2])
}

// profileName is the name of a profile's class: mig-1g.10gb.me.nvidia.com if the driver is gpu.nvidia.com.
func (o Options) profileName(profile string) string {
	return "mig-" + ProfileLabel(profile) + "." + o.domain()
}

func (o Options) domain() string { return strings.TrimPrefix(o.Driver, "gpu.") }

// profileResource is the extended resource of a profile as the device plugin spells it, or empty.
func (o Options) profileResource(profile string) string {
	if o.ResourcePrefix == "" {
		return ""
	}
	return o.ResourcePrefix + strings.ReplaceAll(profile, "+", ".")
}

// ProfileLabel spells a profile for class names: "+" becomes "." and "-" becomes "-no-", as in names of devices.
func ProfileLabel(profile string) string {
	return strings.NewReplacer("-", "-no-", "+", ".").Replace(profile)
}

// class selects by driver first, then by attributes that every device of the type has. A selector that fails on one
// device fails every allocation that reaches this device.
func (o Options) class(name string, kind gpu.Kind, attribute, value string) *resourceapi.DeviceClass {
	expression := fmt.Sprintf("device.driver == %[1]q && device.attributes[%[1]q].type == %[2]q", o.Driver,
		string(kind))
	if attribute == renamed {
		expression += fmt.Sprintf(" && has(device.attributes[%[1]q].%[2]s) && device.attributes[%[1]q].%[2]s", o.Driver,
			attribute)
		if attribute = ""; kind == gpu.KindMIG {
			attribute = "profile"
		}
	}
	if attribute != "" {
		if kind != gpu.KindGroup { // A group's size is an int.
			value = strconv.Quote(value)
		}
		expression += fmt.Sprintf(" && has(device.attributes[%[1]q].%[2]s) && device.attributes[%[1]q].%[2]s == %[3]s",
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
