//go:build exits

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package exits

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// programs are the programs that can lack a feature.
var programs = []string{"./cmd/dra-controller", "./cmd/dra-kubelet-plugin", "./cmd/kubectl-gpu"}

// linked compiles the programs with the tags of a release and one more, and returns their packages and files. It links
// none of them, which takes most of the time of a build.
func linked(t *testing.T, tag string) []string {
	t.Helper()
	const files = `{{$p := .}}{{.ImportPath}}{{range .GoFiles}} {{$p.ImportPath}}/{{.}}{{end}}`
	tags := strings.Trim(os.Getenv("TAGS")+","+tag, ",")
	args := append([]string{"list", "-deps", "-export", "-trimpath", "-tags", tags, "-f", files}, programs...)
	command := exec.CommandContext(t.Context(), "go", args...)
	command.Dir = root
	var problems strings.Builder
	command.Stderr = &problems
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &problems)
	}
	return strings.Fields(string(out))
}

// TestTags_ProgramsWithoutAFeature_BuildAndLinkNoneOfIt also sees that the programs have the feature otherwise.
func TestTags_ProgramsWithoutAFeature_BuildAndLinkNoneOfIt(t *testing.T) {
	all := linked(t, "")
	for name, f := range table(t) {
		if len(f["build tag"]) != 1 {
			t.Fatalf("%s has the build tags %q", name, f["build tag"])
		}
		tag := f["build tag"][0]
		without := linked(t, tag)
		for _, one := range slices.Concat(f["left out"], f["wired in"]) {
			one = "gpu-dra-driver/" + one
			if !slices.Contains(all, one) || slices.Contains(without, one) {
				t.Errorf("%s: %s is linked: %v, and with the tag %s: %v", name, one, slices.Contains(all, one), tag, slices.Contains(without, one))
			}
		}
	}
}
