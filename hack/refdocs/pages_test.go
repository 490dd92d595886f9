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

	controllerflags "gpu-dra-driver/cmd/dra-controller/flags"
	pluginflags "gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/cmd/envflags"
	supervisorflags "gpu-dra-driver/cmd/mps-supervisor/flags"
)

func generated(t *testing.T) map[string]string {
	t.Helper()
	all, err := pages("../..")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestPages_Generated_MatchDocs(t *testing.T) {
	for name, want := range generated(t) {
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
	page := generated(t)["flags.md"]
	for _, fs := range []*pflag.FlagSet{
		pluginflags.New(new(pluginflags.Config)), controllerflags.New(new(controllerflags.Config)),
		supervisorflags.New(new(supervisorflags.Config)),
	} {
		_, section, _ := strings.Cut(page, "## "+fs.Name()+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		fs.VisitAll(func(f *pflag.Flag) {
			if env := envflags.Env(f.Name); env != "" && !strings.Contains(section, "`"+env+"`") {
				t.Errorf("--%s of %s is not in the page", f.Name, fs.Name())
			}
		})
	}
}

func TestReasons_CommentWithoutRemedy_ReturnsError(t *testing.T) {
	for _, comment := range []string{"", "// Busy: it is in use.", "// Other: it is in use. Wait."} {
		path := filepath.Join(t.TempDir(), "reasons.go")
		text := "package p\n\ntype Reason string\n\nconst (\n\t" + comment + "\n\tBusy Reason = \"Busy\"\n)\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := reasons(path, "Reason"); err == nil {
			t.Errorf("comment %q gives %+v", comment, got)
		}
	}
}

func TestRow_PipeInCell_Escaped(t *testing.T) {
	var b strings.Builder
	row(&b, "a|b", "c")
	if got, want := b.String(), "| a\\|b | c |\n"; got != want {
		t.Errorf("row = %q, want %q", got, want)
	}
}
