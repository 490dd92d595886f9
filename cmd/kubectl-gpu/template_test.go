// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

func TestSlices_NewNode_PrintsPrediction(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	for _, c := range []struct {
		args    string
		devices int
	}{
		{"--board=t4-1", 2}, {"--board=t4-1 -o json", 2},
	} {
		code, out, notes := e.kubectl(append([]string{"slices"}, strings.Fields(c.args)...)...)
		var list resourceapi.ResourceSliceList
		if err := yaml.UnmarshalStrict([]byte(out), &list); code != 0 || err != nil || !strings.Contains(notes, "assumed: UUIDs are placeholders") {
			t.Fatalf("%s: %d, %v, %s\n%s", c.args, code, err, notes, out)
		}
		devices := 0
		for _, s := range list.Items {
			devices += len(s.Spec.Devices)
			if *s.Spec.NodeName != templateName || !strings.HasPrefix(s.Spec.Pool.Name, templateName+"/") {
				t.Errorf("%s: node %s, pool %s", c.args, *s.Spec.NodeName, s.Spec.Pool.Name)
			}
		}
		if devices != c.devices {
			t.Errorf("%s: %d devices, want %d", c.args, devices, c.devices)
		}
	}
	for args, want := range map[string]string{
		"--board=dgx-2": "use one of", "--board=t4-1 n1": "exclude", "--board=t4-1 -o tiff": "tiff",
	} {
		if code, _, notes := e.kubectl(append([]string{"slices"}, strings.Fields(args)...)...); code == 0 || !strings.Contains(notes, want) {
			t.Errorf("%s: %d, %s", args, code, notes)
		}
	}
}
