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

// Each class finds the devices of its type and no other driver's, under any
// name of the driver. A selector that fails on one device would abort every
// allocation, so that another driver's device must not make it fail.
func TestDeviceClassesFindTheirDevices(t *testing.T) {
	for _, driver := range []string{"gpu.nvidia.com", "gpu.example.com"} {
		manifests := render(t, chart, "--set", "driverName="+driver, "--show-only", "templates/deviceclasses.yaml")
		classes := map[string]resourceapi.DeviceClassSpec{}
		for doc := range strings.SplitSeq(manifests, "\n---\n") {
			var c resourceapi.DeviceClass
			if err := yaml.UnmarshalStrict([]byte(doc), &c); err != nil {
				t.Fatal(err)
			}
			classes[c.Name] = c.Spec
		}
		if len(classes) != 2 {
			t.Fatalf("%d classes", len(classes))
		}
		if got := classes[driver].ExtendedResourceName; got == nil || *got != "nvidia.com/gpu" {
			t.Errorf("%s: extended resource = %v", driver, got)
		}
		for class, kind := range map[string]string{driver: "gpu", "monitor." + driver: "monitor"} {
			for _, c := range []struct {
				driver, kind string
				want         bool
			}{
				{driver, "gpu", kind == "gpu"},
				{driver, "monitor", kind == "monitor"},
				{driver, "mig", false},
				{"dra.example.com", kind, false},
			} {
				device := dracel.Device{Driver: c.driver, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					resourceapi.QualifiedName(c.driver + "/type"): {StringValue: &c.kind},
				}}
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
