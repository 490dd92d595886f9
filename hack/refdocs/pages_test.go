// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"gpu-dra-driver/api/deviceclass/v1beta1"
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
		got, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s has drifted, run make generate (-tables +file):\n%s", name, diff)
		}
	}
}

func TestPages_Flags_EachHasRow(t *testing.T) {
	page := generated(t)["docs/reference/flags.md"]
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

// TestParameterFields_Types_DescribeEveryField walks the types in their JSON form.
func TestParameterFields_Types_DescribeEveryField(t *testing.T) {
	var have []string
	var walk func(prefix string, of reflect.Type)
	walk = func(prefix string, of reflect.Type) {
		for i := range of.NumField() {
			f := of.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			have = append(have, prefix+name)
			if inner := f.Type; inner.Kind() == reflect.Pointer && inner.Elem().Kind() == reflect.Struct && inner.Elem().PkgPath() == of.PkgPath() &&
				inner.Elem() != reflect.TypeFor[v1beta1.Quantity]() {
				walk(prefix+name+".", inner.Elem())
			}
		}
	}
	walk("", reflect.TypeFor[v1beta1.Config]())
	var described []string
	for _, f := range parameterFields {
		described = append(described, f.Path)
	}
	if diff := cmp.Diff(have, append([]string{"apiVersion", "kind"}, described...)); diff != "" {
		t.Errorf("(-types +reference):\n%s", diff)
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
