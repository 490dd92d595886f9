// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package kind_test checks the kind scripts without Docker and kind: their syntax, their commands, and that the files
// of those exist.
package kind_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden")

const root = "../.."

func script(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("./kind.sh", args...)
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); name != "CLUSTER" && name != "PROFILE" && name != "VERSION" && name != "KIND_NODE_IMAGE" {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "PATH=/usr/bin:/bin")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestKind_Script_HasNoSyntaxError(t *testing.T) {
	if out, err := exec.Command("bash", "-n", "kind.sh").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestKind_Images_AreLoaded checks that the script loads all images: a pod with a missing image would stay pending.
func TestKind_Images_AreLoaded(t *testing.T) {
	out, err := script(t, "--dry-run", "up")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	catalog, err := os.ReadFile("../../deployments/images/catalog.go")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`name: +"(.*)"`).FindAllSubmatch(catalog, -1)
	if len(names) != 4 {
		t.Errorf("the catalog has %d images", len(names))
	}
	for _, name := range names {
		if archive := "kind load image-archive --name gpu-demo dist/" + string(name[1]) + "-0.1.0.tar\n"; !strings.Contains(out, archive) {
			t.Errorf("no %s in\n%s", archive, out)
		}
	}
}

func TestKind_DryRun_PrintsGolden(t *testing.T) {
	var got strings.Builder
	for _, args := range [][]string{{"up"}, {"run", "one-gpu", "unsatisfiable", "replicas", "budget", "priority"}, {"down"}} {
		out, err := script(t, append([]string{"--dry-run"}, args...)...)
		if err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
		got.WriteString("$ kind.sh --dry-run " + strings.Join(args, " ") + "\n" + out)
	}
	if *update {
		if err := os.WriteFile("testdata/dry-run.txt", []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/dry-run.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("go test ./demo/kind -update writes the golden (-golden +printed):\n%s", diff)
	}
}

// TestKind_NamedFiles_Exist checks the files after -f, --config or as the chart.
func TestKind_NamedFiles_Exist(t *testing.T) {
	out, err := script(t, "--dry-run", "up")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(out)
	files := 0
	for i, w := range words {
		if w == "-f" || w == "--config" || strings.HasPrefix(w, "hack/") {
			file := w
			if !strings.HasPrefix(w, "hack/") {
				file = words[i+1]
			}
			files++
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Error(err)
			}
		}
	}
	if files < 4 {
		t.Errorf("only %d files are named:\n%s", files, out)
	}
}

// TestKind_Run_CoversEveryDemo runs without arguments.
func TestKind_Run_CoversEveryDemo(t *testing.T) {
	out, err := script(t, "--dry-run", "run")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	demos, err := filepath.Glob(filepath.Join(root, "demo", "*.yaml"))
	if err != nil || len(demos) == 0 {
		t.Fatalf("no demos: %v", err)
	}
	steps, err := filepath.Glob(filepath.Join(root, "demo", "*", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range steps {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if counts.Match(text) && !strings.Contains(out, "apply -f "+strings.TrimPrefix(file, root+"/")+"\n") {
			t.Errorf("%s is not run", file)
		}
	}
	for _, d := range demos {
		if !strings.Contains(out, "apply -f demo/"+filepath.Base(d)+"\n") {
			t.Errorf("%s is not run", d)
		}
	}
}

// counts finds the head of a demo.
var counts = regexp.MustCompile(`(?m)^# (Pods|Pending): `)

func TestKind_BadArguments_PrintUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"sideways"}, {"up", "now"}, {"--dry-run", "run", "no-such-demo"}} {
		if out, err := script(t, args...); err == nil {
			t.Errorf("%q was taken:\n%s", args, out)
		}
	}
	if out, _ := script(t); !strings.Contains(out, "kind.sh up") {
		t.Errorf("no usage:\n%s", out)
	}
}

// TestSimulatorDockerfile_PackagesAndCopies_Exist checks the packages of the simulator's image.
func TestSimulatorDockerfile_PackagesAndCopies_Exist(t *testing.T) {
	data, err := os.ReadFile("simulator.Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	built := map[string]bool{}
	words := strings.Fields(string(data))
	for i, w := range words {
		switch {
		case w == "-o":
			built[words[i+1]] = true
			if _, err := os.Stat(filepath.Join(root, words[i+2])); err != nil {
				t.Error(err)
			}
		case w == "--from=build" && !built[words[i+1]]:
			t.Errorf("COPY of %s, which nothing builds", words[i+1])
		}
	}
	if len(built) != 3 {
		t.Errorf("it builds %v", built)
	}
}
