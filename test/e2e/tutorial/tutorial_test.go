// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package tutorial

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSteps_Page_ReturnsCommandsWithOutput(t *testing.T) {
	page := "# A page\n\n```sh setup\nmake up\n```\n\n```sh\necho a\necho b\n```\n\n```text\na\nb\n```\n\n```sh\ntrue\n```\n"
	got, err := Steps(page)
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		{Line: 3, Commands: "make up\n", Setup: true},
		{Line: 7, Commands: "echo a\necho b\n", Output: "a\nb\n"},
		{Line: 17, Commands: "true\n"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSteps_UnknownOrOpenBlock_ReturnsError(t *testing.T) {
	for _, page := range []string{
		"no block", "```sh\ntrue\n", "```text\na\n```\n", "```sh\ntrue\n```\n```bash\nfalse\n```\n",
		"```sh\ntrue\n```\n```text\na\n```\n```text\nb\n```\n",
	} {
		if steps, err := Steps(page); err == nil {
			t.Errorf("%q gives %+v", page, steps)
		}
	}
}

func TestPrinted_Section_ReturnsItsCommands(t *testing.T) {
	page := "# A\n\n```\nno\n```\n\n## B\n\n1. One:\n\n   ```\n   helm install a \\\n     --wait\n   kubectl get  pods\n   ```\n\ntext\n\n```sh\nmake\n```\n\n## C\n\n```\nno\n```\n"
	got, err := Printed(page, "B")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]string{{"helm install a --wait", "kubectl get pods"}, {"make"}}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := Printed(page, "D"); err == nil {
		t.Error("no error for a heading that the page lacks")
	}
}

// TestSimulatorRecipes_ChartAndPage_AreTheSameCommands has no cluster. The suite simulator runs the page's commands.
func TestSimulatorRecipes_ChartAndPage_AreTheSameCommands(t *testing.T) {
	read := func(path, heading string) (commands []string) {
		page, err := os.ReadFile("../../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		blocks, err := Printed(string(page), heading)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			for _, command := range b {
				if strings.HasPrefix(command, "helm ") {
					commands = append(commands, strings.ReplaceAll(command, "image.registry=registry.example.com", "image.pullPolicy=Never"))
				}
			}
		}
		return commands
	}
	chart, page := read("deployments/helm/gpu-dra-driver/README.md", "Simulated GPUs"), read("docs/simulator.md", "Five minutes")
	if diff := cmp.Diff(page, chart); diff != "" || len(page) != 2 {
		t.Errorf("(-docs/simulator.md +README.md of the chart):\n%s", diff)
	}
}

func TestCheck_Output_MatchesWildcards(t *testing.T) {
	for _, c := range []struct {
		name, page, got string
		ok              bool
	}{
		{"the same", "a\nb\n", "a\nb\n", true},
		{"no output shown", "", "a\n", true},
		{"longer name", "NAME   AGE\none    …\n", "NAME                   AGE\none-long-column  4s\n", false},
		{"columns", "NAME   AGE\none    …\n", "NAME  AGE\none   4s\n", true},
		{"inside of a word", "gpu-…-mig-… 1Mi\n", "gpu-0000-1b-00-0-mig-1g-10gb-4   1Mi\n", true},
		{"lines", "first\n…\nlast\n", "first\n2\n3\nlast\n", true},
		{"no line for lines", "first\n…\nlast\n", "first\nlast\n", true},
		{"missing line", "a\nb\n", "a\n", false},
		{"extra line", "a\n", "a\nb\n", false},
		{"another word", "STATUS Ready\n", "STATUS NotReady\n", false},
	} {
		if err := (Step{Output: c.page}).Check(c.got); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestGettingStarted_Blocks_AreValid finds errors of syntax and missing make targets without a cluster.
func TestGettingStarted_Blocks_AreValid(t *testing.T) {
	page, err := os.ReadFile("../../../docs/getting-started.md")
	if err != nil {
		t.Fatal(err)
	}
	steps, err := Steps(string(page))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		cmd := exec.Command("bash", "-n", "-c", s.Commands)
		if target, ok := strings.CutPrefix(s.Commands, "make "); s.Setup && ok {
			cmd = exec.Command("make", append([]string{"--dry-run", "-C", "../../.."}, strings.Fields(target)...)...)
		} else if s.Setup {
			t.Errorf("line %d: %q is not a make target", s.Line, s.Commands)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("line %d: %v\n%s", s.Line, err, out)
		}
	}
}
