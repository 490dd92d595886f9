// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import "testing"

func TestCorrect_Expression_NamesOfTheDriverOnly(t *testing.T) {
	v := newView(t, patient, "hgx-h100")
	const attributes = `device.attributes["gpu.nvidia.com"].`
	for expression, want := range map[string][2]string{
		attributes + `productname == "x"`:                          {attributes + `productName == "x"`, "write productName instead of productname"},
		attributes + `productName == "productname"`:                {attributes + `productName == "productname"`, ""},
		`device.attributes["nvidia.com"].productName == "x"`:       {attributes + `productName == "x"`, `write "gpu.nvidia.com" instead of "nvidia.com"`},
		`device.attributes["nic.example.com"].productname == ""`:   {`device.attributes["nic.example.com"].productname == ""`, ""},
		attributes + `zzzzzzzz == ""`:                              {attributes + `zzzzzzzz == ""`, ""},
		`device.capacity["gpu.nvidia.com"].memori > quantity("1")`: {`device.capacity["gpu.nvidia.com"].memory > quantity("1")`, "write memory instead of memori"},
		`(`: {`(`, ""},
	} {
		if corrected, change := v.Correct(expression); corrected != want[0] || change != want[1] {
			t.Errorf("%s: %s, %q", expression, corrected, change)
		}
	}
}
