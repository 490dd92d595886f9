// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	pluginflags "gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/cmd/envflags"
)

func TestPages_Generated_MatchDocs(t *testing.T) {
	for name, want := range pages() {
		got, err := os.ReadFile(filepath.Join("../../docs/reference", name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("docs/reference/%s has drifted, run make generate (-tables +file):\n%s", name, diff)
		}
	}
}

func TestPages_Flags_EachHasRow(t *testing.T) {
	page := pages()["flags.md"]
	pluginflags.New(new(pluginflags.Config)).VisitAll(func(f *pflag.Flag) {
		if env := envflags.Env(f.Name); env != "" && !strings.Contains(page, "`"+env+"`") {
			t.Errorf("--%s is not in the page", f.Name)
		}
	})
}

func TestRow_PipeInCell_Escaped(t *testing.T) {
	var b strings.Builder
	row(&b, "a|b", "c")
	if got, want := b.String(), "| a\\|b | c |\n"; got != want {
		t.Errorf("row = %q, want %q", got, want)
	}
}
