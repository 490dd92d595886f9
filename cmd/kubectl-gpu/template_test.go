// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/pkg/node/nodetemplate"
)

func TestSlices_NewNode_PrintsPrediction(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100", "n2": "l40s-4"})
	for _, c := range []struct {
		args    string
		devices int
	}{
		{"--board=t4-1", 2}, {"--board=t4-1 -o json", 2}, {"--from-node=n2", 2 * perNode},
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
	code, out, _ := e.kubectl("slices", "--from-node=n1", "-o", "karpenter")
	var k nodetemplate.Karpenter
	if err := yaml.UnmarshalStrict([]byte(out), &k); code != 0 || err != nil || len(k.AttributeBindings) != perNode {
		t.Errorf("%d, %v, bindings %+v", code, err, k.AttributeBindings)
	}
	for args, want := range map[string]string{
		"--board=dgx-2": "use one of", "--board=t4-1 n1": "exclude", "--from-node=n3": "node n3 has no ResourceSlices", "--board=t4-1 -o tiff": "tiff",
		"--board=t4-1 --from-node=n1": "exclude", "-o karpenter": "karpenter",
	} {
		if code, _, notes := e.kubectl(append([]string{"slices"}, strings.Fields(args)...)...); code == 0 || !strings.Contains(notes, want) {
			t.Errorf("%s: %d, %s", args, code, notes)
		}
	}
}
