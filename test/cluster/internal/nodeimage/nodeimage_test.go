// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodeimage

import "testing"

func TestHasSysResource_BoundingSet_ReadsItsBit(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tsh\nCapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\n": true,
		"Name:\tsh\nCapEff:\t000001ffffffffff\nCapBnd:\t000001fffeffffff\n": false,
		"Name:\tsh\n": true,
	} {
		if got := hasSysResource(status); got != want {
			t.Errorf("%q: got %v, want %v", status, got, want)
		}
	}
}
