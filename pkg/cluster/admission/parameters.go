// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// config is one parameter object for this driver, and its path.
type config struct {
	v1beta1.Config
	requests []string
	path     *field.Path
}

// of reports whether the object applies to a request, like resourceclaim.ConfigForResult: it names the request or its
// parent, or no request at all.
func (c config) of(r request) bool {
	return len(c.requests) == 0 || slices.Contains(c.requests, r.Name) || r.Parent != "" &&
		slices.Contains(c.requests, r.Parent)
}

// fits reports whether the object has the right kind for the request's devices.
func (c config) fits(r request) bool {
	return r.kind == "" || (c.Kind == v1beta1.KindMIGDeviceConfig) == (r.kind == gpu.KindMIG)
}

// decode decodes every parameter object for this driver.
func (v *ClusterView) decode(
	opaque []resourceapi.DeviceClaimConfiguration, path *field.Path,
) (configs []config, errs field.ErrorList) {
	for i, c := range opaque {
		if c.Opaque == nil || c.Opaque.Driver != v.driver {
			continue
		}
		at := path.Index(i)
		decoded, err := v1beta1.Decode(c.Opaque.Parameters.Raw)
		if err != nil {
			errs = append(errs, invalid(at.Child("opaque", "parameters"), err))
			continue
		}
		configs = append(configs, config{decoded, c.Requests, at})
	}
	return configs, errs
}

// invalid returns the error with the path of its field inside the parameters.
func invalid(parameters *field.Path, err error) *field.Error {
	var wrong *v1beta1.FieldError
	if errors.As(err, &wrong) {
		err = wrong.Problem
		if wrong.Path != "" {
			parameters = parameters.Child(wrong.Path)
		}
	}
	// The text of Forbidden is only the detail, which already contains the value.
	return field.Forbidden(parameters, err.Error())
}

// parameters denies parameters that Prepare would refuse, as far as the claim alone shows it.
func (v *ClusterView) parameters(
	configs []config, requests []request,
) (chosen map[string]*config, errs field.ErrorList) {
	for _, c := range configs {
		errs = append(errs, v.aimed(c, requests)...)
	}
	chosen = map[string]*config{} // The last fitting one counts.
	for i := range configs {
		for _, r := range requests {
			if configs[i].of(r) && configs[i].fits(r) && !v.others(r) && r.kind != "" {
				chosen[r.Name] = &configs[i]
			}
		}
	}
	for _, r := range requests {
		// Parameters without a device are harmless.
		if c := chosen[r.Name]; c != nil && c.Sharing != nil && r.kind == gpu.KindGroup && !r.Admin() &&
			!r.Alternative() {
			errs = append(errs, field.Forbidden(c.path.Child("opaque", "parameters", "sharing"),
				fmt.Sprintf("request %q is for a group of GPUs, which one claim has as a whole, and there is nothing "+
					"to share; leave it out", r.Name)))
		}
	}
	return chosen, append(errs, v.together(chosen, requests)...)
}

// aimed checks the requests of a parameter object.
func (v *ClusterView) aimed(c config, requests []request) (errs field.ErrorList) {
	ours, others := 0, []string{}
	for _, r := range requests {
		switch {
		case !c.of(r):
			continue
		case v.others(r):
			others = append(others, fmt.Sprintf("%q (DeviceClass %s, driver %s)", r.Name, r.DeviceClassName, r.driver))
			continue
		}
		ours++
		if slices.Contains(c.requests, r.Name) && !c.fits(r) && !r.Alternative() {
			errs = append(errs, field.Forbidden(c.path.Child("opaque", "parameters", "kind"),
				fmt.Sprintf("%s is not for a device of type %s, which request %q selects; use %s", c.Kind, r.kind,
					r.Name, other(c.Kind))))
		}
	}
	if ours == 0 && len(others) > 0 {
		errs = append(errs, field.Forbidden(c.path.Child("opaque", "driver"),
			fmt.Sprintf("%s: the parameters are for requests that select devices of another driver: %s; name in "+
				"requests the one that they are for, or leave them out",
				v.driver, strings.Join(others, ", "))))
	}
	return errs
}

func other(kind string) string {
	if kind == v1beta1.KindGPUConfig {
		return v1beta1.KindMIGDeviceConfig
	}
	return v1beta1.KindGPUConfig
}

// together checks the devices of one claim in combination. It skips claims whose number of devices is open.
func (v *ClusterView) together(chosen map[string]*config, requests []request) (errs field.ErrorList) {
	devices := map[*config][]v1beta1.Device{}
	var owners []request
	for _, r := range requests {
		if v.others(r) {
			continue
		}
		// A group counts as its GPUs, whose number the claim need not contain.
		if r.Alternative() || r.Devices() == 0 || r.driver == "" || r.kind == "" || r.kind == gpu.KindGroup ||
			len(owners)+int(min(r.Devices(), 65)) > 64 {
			return nil
		}
		for range r.Devices() {
			c := chosen[r.Name]
			devices[c] = append(devices[c], v1beta1.Device{Index: len(devices[c])})
			owners = append(owners, r)
		}
	}
	for _, r := range owners {
		c := chosen[r.Name]
		if c == nil || c.Sharing == nil || r.Admin() {
			continue
		}
		asked, parameters := *c.Sharing, c.path.Child("opaque", "parameters")
		if err := positions(asked).Check(devices[c][0], devices[c]); err != nil {
			errs = append(errs, invalid(parameters, err))
			return errs
		}
		if sharing.Of(asked.Strategy).Daemon && r.Devices() > 1 {
			return append(errs, field.Forbidden(parameters.Child("sharing", "strategy"),
				fmt.Sprintf("%s: request %q asks for %d devices by %[1]s, and a process reaches the %[1]s daemon of "+
					"one device only; ask for one device by %[1]s in a request, or use TimeSlicing", asked.Strategy,
					r.Name, r.Devices())))
		}
	}
	return errs
}

// positions removes the limits of devices by UUID, because the devices are unknown before the allocation.
func positions(s v1beta1.Sharing) *v1beta1.Sharing {
	if s.MPS != nil {
		mps := *s.MPS
		mps.DefaultPerDevicePinnedMemoryLimit = maps.Clone(mps.DefaultPerDevicePinnedMemoryLimit)
		maps.DeleteFunc(mps.DefaultPerDevicePinnedMemoryLimit, func(key string, _ v1beta1.Quantity) bool {
			return strings.HasPrefix(key, "GPU-") || strings.HasPrefix(key, "MIG-")
		})
		s.MPS = &mps
	}
	return &s
}
