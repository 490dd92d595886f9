// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodeimage

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// TestRunc_CannotFreeze_CreatesAgain has a runc that fails twice, each time with a message in its log.
func TestRunc_CannotFreeze_CreatesAgain(t *testing.T) {
	for _, tt := range []struct {
		verb, message string
		code, calls   int
	}{
		{"create", "unable to freeze", 0, 3},
		{"create", "no such file", 7, 1},
		{"exec", "unable to freeze", 7, 1},
	} {
		dir := t.TempDir()
		log, calls, program := filepath.Join(dir, "log.json"), filepath.Join(dir, "calls"), filepath.Join(dir, "runc.real")
		text := "#!/bin/sh\necho \"$*\" >>" + calls + "\n[ $(wc -l <" + calls + ") -eq 3 ] && exit 0\n" +
			"echo '{\"msg\":\"" + tt.message + "\"}' >>" + log + "\nexit 7\n"
		if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		script := strings.ReplaceAll(runc, "/usr/local/sbin/runc.real", program)
		err := exec.Command("sh", "-c", script, "runc", "--log", log, tt.verb, "--bundle", "/b", "id").Run()
		code := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitCode()
		}
		made, err := os.ReadFile(calls)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(made), "--log "+log+" "+tt.verb+" --bundle /b id\n"); got != tt.calls || code != tt.code {
			t.Errorf("%s, %s: %d calls and exit code %d, want %d and %d", tt.verb, tt.message, got, code, tt.calls, tt.code)
		}
	}
}
