// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import "testing"

func TestNearest_ProfileOfAnotherModel_IsTheSmallestThatSuffices(t *testing.T) {
	h100 := []string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}
	for asked, want := range map[string]string{
		"1g.5gb": "1g.10gb", "1g.5gb+me": "1g.10gb", "2g.10gb": "2g.20gb", "2g.24gb": "3g.40gb", "4g.71gb": "7g.80gb", "7g.141gb": "7g.80gb", "1g.10gb.gfx": "1g.10gb", "x": "1g.10gb",
	} {
		if got := nearest(asked, h100); got != want {
			t.Errorf("the profile nearest to %s is %s, want %s", asked, got, want)
		}
	}
}
