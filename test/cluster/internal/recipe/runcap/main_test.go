// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWithout_Process_OnlyTheCapabilityIsRemoved(t *testing.T) {
	const config = `{"ociVersion":"1.0.2","process":{"args":["sh"],"capabilities":{"bounding":["CAP_CHOWN","CAP_SYS_RESOURCE"],"effective":["CAP_SYS_RESOURCE"]}}}`
	got, err := without([]byte(config), []string{"process", "capabilities"})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"ociVersion":"1.0.2","process":{"args":["sh"],"capabilities":{"bounding":["CAP_CHOWN"],"effective":[]}}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// `runc exec --user` has a process without capabilities.
	if got, err := without([]byte(`{"args":["sh"]}`), []string{"capabilities"}); err != nil || string(got) != `{"args":["sh"]}` {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestFlag_Forms_ValueFound(t *testing.T) {
	for _, args := range [][]string{{"create", "--bundle", "/b", "id"}, {"create", "--bundle=/b", "id"}, {"--root", "/r", "create", "-b", "/b", "id"}} {
		if got := flag(args, "--bundle", "-b"); got != "/b" {
			t.Errorf("%q: %q", args, got)
		}
	}
	if got := flag([]string{"create", "id"}, "--bundle", "-b"); got != "" {
		t.Errorf("without the flag: %q", got)
	}
}
