// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/seedtest"
)

const (
	// contextLines stand before and after each change of a golden.
	contextLines = 1
	// shownLines is the number of lines that a golden shows of a longer removal.
	shownLines = 2

	standardLabels = `    app.kubernetes.io/name: gpu-dra-driver
    app.kubernetes.io/instance: gpu-dra-driver
    app.kubernetes.io/version: "0.1.0"
    app.kubernetes.io/managed-by: Helm
    helm.sh/chart: gpu-dra-driver-0.1.0
`
	// standardLine stands for standardLabels in goldens. It is a comment, because make try reads the default as YAML. No
	// template contains it.
	standardLine = "    # 5 standard labels\n"
)

// renamed replaces names as the values file renamed does almost everywhere. Its golden shows the exceptions.
var renamed = strings.NewReplacer("gpu-dra-driver-", "second-", "gpu.nvidia.com", "gpu.example.com")

// golden returns the rendered manifests according to the goldens of the default and of the values file.
func golden(name string) (string, error) {
	base, err := baseOf(name)
	if err != nil || name == "default" {
		return base, err
	}
	diff, err := os.ReadFile(filepath.Join("testdata", "golden", name+".diff"))
	if err != nil {
		return "", err
	}
	return patch(base, string(diff))
}

// baseOf returns the text from which a golden differs.
func baseOf(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join("testdata", "golden", "default.yaml"))
	if name == "renamed" {
		return renamed.Replace(string(text)), err
	}
	return string(text), err
}

// writeGolden writes the default in full, and every other golden as its difference from the default.
func writeGolden(name, rendered string) error {
	if name == "default" {
		return os.WriteFile(filepath.Join("testdata", "golden", "default.yaml"), []byte(rendered), 0o644)
	}
	base, err := baseOf(name)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("testdata", "golden", name+".diff"), []byte(unified(base, rendered)), 0o644)
}

// place names a line of manifests: its object and its number in the object.
type place struct {
	object string
	line   int
}

func (p place) String() string { return fmt.Sprintf("@@ %s, line %d @@", p.object, p.line) }

// places returns the place of each line, and of the end.
func places(lines []string) []place {
	out := make([]place, 0, len(lines)+1)
	seen := map[string]int{}
	for start := 0; start < len(lines); {
		end := start + 1
		for end < len(lines) && lines[end] != "---" {
			end++
		}
		kind, name := "nothing", ""
		for _, line := range slices.Backward(lines[start:end]) {
			if k, ok := strings.CutPrefix(line, "kind: "); ok {
				kind = k
			}
			if n, ok := strings.CutPrefix(line, "  name: "); ok {
				name = n
			}
		}
		object := strings.TrimSpace(kind + " " + name)
		if seen[object]++; seen[object] > 1 {
			object += fmt.Sprintf(" (%d)", seen[object])
		}
		for n := range end - start {
			out = append(out, place{object, n + 1})
		}
		start = end
	}
	return append(out, place{"end", 1})
}

// edit is a line of both texts (' '), or one that the change removes ('-') or adds ('+').
type edit struct {
	op   byte
	text string
}

// edits converts one list of lines into the other by a longest common subsequence; it prefers to remove before it
// adds.
func edits(a, b []string) []edit {
	length := make([][]int32, len(a)+1)
	for i := range length {
		length[i] = make([]int32, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	var out []edit
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, edit{' ', a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && length[i+1][j] >= length[i][j+1]:
			out = append(out, edit{'-', a[i]})
			i++
		default:
			out = append(out, edit{'+', b[j]})
			j++
		}
	}
	return out
}

// unified renders the difference of two texts with some lines around each change. A hunk begins with the place of its
// first line in the first text. "-… N lines" replaces the middle of a long removal.
func unified(a, b string) string {
	lines := strings.Split(a, "\n")
	at := places(lines)
	all := edits(lines, strings.Split(b, "\n"))
	near := func(i int) bool {
		return slices.ContainsFunc(all[max(0, i-contextLines):min(len(all), i+contextLines+1)], func(e edit) bool { return e.op != ' ' })
	}
	var out strings.Builder
	line, inside := 0, false
	for i := 0; i < len(all); i++ {
		if !near(i) {
			inside = false
			line++
			continue
		}
		if !inside {
			fmt.Fprintln(&out, at[line])
			inside = true
		}
		removed := 0
		for i+removed < len(all) && all[i+removed].op == '-' {
			removed++
		}
		if hidden := removed - 2*shownLines; hidden > 1 && (i == 0 || all[i-1].op != '-') {
			for n := range removed {
				switch {
				case n < shownLines || n >= removed-shownLines:
					fmt.Fprintf(&out, "-%s\n", all[i+n].text)
				case n == shownLines:
					fmt.Fprintf(&out, "-… %d lines\n", hidden)
				}
			}
			line += removed
			i += removed - 1
			continue
		}
		fmt.Fprintf(&out, "%c%s\n", all[i].op, all[i].text)
		if all[i].op != '+' {
			line++
		}
	}
	return out.String()
}

// patch applies the output of unified. Since it is a function, a golden that fits one text fits no other.
func patch(base, diff string) (string, error) {
	lines := strings.Split(base, "\n")
	at := map[string]int{}
	for n, p := range places(lines) {
		at[p.String()] = n
	}
	var out []string
	line := 0
	for text := range strings.Lines(diff) {
		text = strings.TrimSuffix(text, "\n")
		if strings.HasPrefix(text, "@@ ") {
			start, ok := at[text]
			if !ok || start < line {
				return "", fmt.Errorf("the default has no %s", text)
			}
			out = append(out, lines[line:start]...)
			line = start
			continue
		}
		var hidden int
		if n, _ := fmt.Sscanf(text, "-… %d lines", &hidden); n == 1 && line+hidden <= len(lines) {
			line += hidden
			continue
		}
		if text == "" || text[0] != '+' && (line >= len(lines) || lines[line] != text[1:]) {
			return "", fmt.Errorf("the default has not %q", text)
		}
		switch text[0] {
		case '+':
			out = append(out, text[1:])
			continue
		case ' ':
			out = append(out, text[1:])
		case '-':
		default:
			return "", errors.New("neither context nor change: " + text)
		}
		line++
	}
	return strings.Join(append(out, lines[line:]...), "\n"), nil
}

// TestChart_ValuesFiles_RenderGoldens renders by Helm's program, and compares with what Helm's packages render for other tests.
func TestChart_ValuesFiles_RenderGoldens(t *testing.T) {
	for _, c := range cases {
		t.Run(c, func(t *testing.T) {
			values := []string{"--values", "testdata/values/" + c + ".yaml"}
			got, problems, err := tool(t, nil, append([]string{"helm", "template", "gpu-dra-driver", chart, "--namespace", "gpu-dra-driver", "--set", registry}, values...)...)
			if err != nil {
				t.Fatalf("%v\n%s", err, problems)
			}
			if diff := cmp.Diff(strings.TrimSpace(got), strings.TrimSpace(render(t, chart, values...))); diff != "" {
				t.Errorf("Helm's packages render other objects (-program +packages):\n%s", diff)
			}
			conform(t, got)
			got = strings.ReplaceAll(got, standardLabels, standardLine)
			if *update {
				if err := writeGolden(c, got); err != nil {
					t.Fatal(err)
				}
			}
			want, err := golden(c)
			if err != nil {
				t.Fatalf("go test ./helm -update writes the goldens: %v", err)
			}
			if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("go test ./helm -update writes the goldens (-golden +rendered):\n%s", diff)
			}
		})
	}
}

// TestChart_ValuesAndGoldens_BelongTogether finds a values file that no case renders and a golden that none reads.
func TestChart_ValuesAndGoldens_BelongTogether(t *testing.T) {
	for _, dir := range []string{"values", "golden"} {
		files, err := os.ReadDir(filepath.Join("testdata", dir))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range files {
			// Goldens of policies are tested by decisions instead.
			if name := strings.TrimSuffix(f.Name(), filepath.Ext(f.Name())); name != "policies" {
				names = append(names, name)
			}
		}
		if diff := cmp.Diff(slices.Sorted(slices.Values(cases)), names); diff != "" {
			t.Errorf("testdata/%s (-cases +files):\n%s", dir, diff)
		}
	}
}

// TestPatch_AnyTexts_RestoresTheSecond also removes, adds and changes whole objects.
func TestPatch_AnyTexts_RestoresTheSecond(t *testing.T) {
	r := rand.New(rand.NewPCG(seedtest.Base(t), 7))
	text := func() string {
		var lines []string
		for range r.IntN(60) {
			lines = append(lines, []string{"---", "kind: A", "kind: B", "  name: a", "    image: x", "", "-… 3 lines", "@@ A, line 1 @@"}[r.IntN(8)])
		}
		return strings.Join(lines, "\n")
	}
	for range 2000 {
		a, b := text(), text()
		if r.IntN(2) == 0 { // A long removal.
			lines := strings.Split(a, "\n")
			n := r.IntN(len(lines))
			b = strings.Join(slices.Delete(lines, n, n+r.IntN(len(lines)-n)), "\n")
		}
		diff := unified(a, b)
		if got, err := patch(a, diff); err != nil || got != b {
			t.Fatalf("%v; from\n%s\nby\n%s\nto\n%s\nwant\n%s", err, a, diff, got, b)
		}
	}
}
