// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// instruction is one line of a Dockerfile, continuations joined.
type instruction struct {
	verb string
	args []string
}

func parseDockerfile(t *testing.T, file string) []instruction {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var parsed []instruction
	joined := strings.ReplaceAll(string(data), "\\\n", " ")
	for lines := bufio.NewScanner(strings.NewReader(joined)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		parsed = append(parsed, instruction{strings.ToUpper(fields[0]), fields[1:]})
	}
	return parsed
}

// outputs lists the results of `go build -o` in a RUN instruction, by package, prefixed with the module's directory.
func outputs(run []string) map[string]string {
	built := map[string]string{}
	dir := ""
	for i, arg := range run {
		switch {
		case arg == "-C" && i+1 < len(run):
			dir = run[i+1] + ":"
		case arg == "-o" && i+2 < len(run):
			built[run[i+1]] = dir + run[i+2]
		}
	}
	return built
}

// TestDockerfiles_EachImage_MatchesCatalog compares each image with its Dockerfile: packages, paths and entrypoint.
// Every COPY must have a source in the repository or in an earlier stage.
func TestDockerfiles_EachImage_MatchesCatalog(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, im := range catalog {
		t.Run(im.name, func(t *testing.T) {
			inStage := map[string]map[string]string{} // stage → built file → package
			stage := ""
			installed := map[string]string{} // path in the image → package
			var entrypoint []string
			user := ""
			for _, in := range parseDockerfile(t, im.name+".Dockerfile") {
				switch in.verb {
				case "FROM":
					stage = ""
					if len(in.args) == 3 && strings.EqualFold(in.args[1], "AS") {
						stage = in.args[2]
						inStage[stage] = map[string]string{}
					}
				case "RUN":
					for file, pkg := range outputs(in.args) {
						inStage[stage][file] = pkg
					}
				case "COPY":
					sources, to := in.args[:len(in.args)-1], in.args[len(in.args)-1]
					if from, ok := strings.CutPrefix(sources[0], "--from="); ok {
						for _, source := range sources[1:] {
							pkg, ok := inStage[from][source]
							if !ok {
								t.Errorf("COPY %s: stage %q does not build it", source, from)
							}
							installed[strings.TrimPrefix(to, "/")] = pkg
						}
						continue
					}
					for _, source := range sources {
						if _, err := os.Stat(filepath.Join(root, source)); err != nil {
							t.Errorf("COPY: %v", err)
						}
					}
				case "ENTRYPOINT":
					if err := json.Unmarshal([]byte(strings.Join(in.args, " ")), &entrypoint); err != nil {
						t.Errorf("ENTRYPOINT is not in exec form: %v", err)
					}
				case "USER":
					user = in.args[0]
				}
			}
			want := map[string]string{}
			for _, bin := range im.binaries {
				want[bin.path] = bin.pkg
				if bin.dir != "" {
					want[bin.path] = bin.dir + ":" + bin.pkg
				}
			}
			if diff := cmp.Diff(want, installed); diff != "" {
				t.Errorf("binaries (-catalog +Dockerfile):\n%s", diff)
			}
			if !slices.Equal(entrypoint, []string{"/" + im.binaries[0].path}) {
				t.Errorf("entrypoint = %q", entrypoint)
			}
			if user != im.user {
				t.Errorf("user = %q, want %q", user, im.user)
			}
		})
	}
}

// TestCatalog_Dockerfiles_OneForEachImage checks that no Dockerfile lacks an image, and that the catalog's packages
// exist.
func TestCatalog_Dockerfiles_OneForEachImage(t *testing.T) {
	files, err := filepath.Glob("*.Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, im := range catalog {
		want = append(want, im.name+".Dockerfile")
		for _, bin := range im.binaries {
			if strings.HasPrefix(bin.pkg, "./") {
				if _, err := os.Stat(filepath.Join("..", "..", bin.dir, bin.pkg)); err != nil {
					t.Errorf("%s: %v", im.name, err)
				}
			}
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, files); diff != "" {
		t.Error(diff)
	}
}
