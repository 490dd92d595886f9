// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"
)

// TestDeviceClasses_Selectors_MatchOwnDevicesOnly checks each class with its own devices and another driver's, under
// any name of the driver. A selector that fails on one device would abort every allocation, so another driver's
// device must not make it fail.
func TestDeviceClasses_Selectors_MatchOwnDevicesOnly(t *testing.T) {
	for _, driver := range []string{"gpu.nvidia.com", "gpu.example.com"} {
		manifests := render(t, chart, "--set", "controller.enabled=false,driverName="+driver, "--show-only", "templates/deviceclasses.yaml")
		classes := map[string]resourceapi.DeviceClassSpec{}
		for doc := range strings.SplitSeq(manifests, "\n---\n") {
			var c resourceapi.DeviceClass
			if err := yaml.UnmarshalStrict([]byte(doc), &c); err != nil {
				t.Fatal(err)
			}
			classes[c.Name] = c.Spec
		}
		domain := strings.TrimPrefix(driver, "gpu.")
		if got := classes[driver].ExtendedResourceName; got == nil || *got != "nvidia.com/gpu" {
			t.Errorf("%s: extended resource = %v", driver, got)
		}
		for class, resource := range map[string]string{
			"mig-1g.10gb." + domain: "nvidia.com/mig-1g.10gb", "mig-1g.10gb.me." + domain: "nvidia.com/mig-1g.10gb.me",
			"mig-1g.24gb-no-me." + domain: "nvidia.com/mig-1g.24gb-me",
		} {
			if got := classes[class].ExtendedResourceName; got == nil || *got != resource {
				t.Errorf("%s: extended resource = %v", class, got)
			}
		}
		for class, finds := range map[string]string{
			driver: "gpu", "monitor." + driver: "monitor", "nvlink." + driver: "nvlink-group", "mig." + domain: "mig 1g.10gb+me",
			"mig-1g.10gb.me." + domain: "mig 1g.10gb+me", "mig-1g.10gb." + domain: "mig 1g.10gb",
		} {
			for _, c := range []struct {
				driver, kind string
				want         bool
			}{
				{driver, "gpu", finds == "gpu"},
				{driver, "monitor", finds == "monitor"},
				{driver, "nvlink-group", finds == "nvlink-group"},
				{driver, "mig 1g.10gb+me", finds == "mig 1g.10gb+me"},
				{driver, "mig 1g.10gb", finds == "mig 1g.10gb" || class == "mig."+domain},
				{"dra.example.com", finds, false},
			} {
				kind, profile, cut := strings.Cut(c.kind, " ")
				device := dracel.Device{Driver: c.driver, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					resourceapi.QualifiedName(c.driver + "/type"): {StringValue: &kind},
				}}
				if cut {
					device.Attributes[resourceapi.QualifiedName(c.driver+"/profile")] = resourceapi.DeviceAttribute{StringValue: &profile}
				}
				compiled := dracel.GetCompiler(dracel.Features{}).CompileCELExpression(classes[class].Selectors[0].CEL.Expression, dracel.Options{})
				if compiled.Error != nil {
					t.Fatal(compiled.Error)
				}
				if got, _, err := compiled.DeviceMatches(t.Context(), device); err != nil || got != c.want {
					t.Errorf("class %s on a %s of %s: %v, %v; want %v", class, c.kind, c.driver, got, err, c.want)
				}
			}
		}
	}
}

// TestDeviceClasses_WithController_NoProfileClasses prevents that chart and controller write the same class.
func TestDeviceClasses_WithController_NoProfileClasses(t *testing.T) {
	manifests := render(t, chart, "--show-only", "templates/deviceclasses.yaml")
	if strings.Contains(manifests, "name: mig-") || !strings.Contains(manifests, "name: mig.nvidia.com") {
		t.Errorf("with a controller there are\n%s", manifests)
	}
}
