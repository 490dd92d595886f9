// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodeimage

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLibraries_SeveralFiles_UnionOfTheirLibraries has an extension of iptables that needs more libraries than its program.
func TestLibraries_SeveralFiles_UnionOfTheirLibraries(t *testing.T) {
	const listed = `/usr/sbin/xtables-nft-multi:
	linux-vdso.so.1 (0x00007ffe)
	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f00)
	/lib64/ld-linux-x86-64.so.2 (0x00007f01)
/usr/lib/x86_64-linux-gnu/xtables/libxt_statistic.so:
	libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f02)
	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f00)
`
	want := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"}
	if diff := cmp.Diff(want, libraries(listed)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

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
