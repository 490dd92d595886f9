// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"gpu-dra-driver/hack/layers"
)

func TestMeasure_File_CountsWhatIsWritten(t *testing.T) {
	text := "// A comment.\npackage a\n\nimport \"fmt\"\n\ntype t struct {\n\tf, g func()\n\tn int\n}\n\nvar x = 1 // " + strings.Repeat("x", 100) + "\n"
	got, err := measure("a.go", []byte(text))
	// `package a`; `type t struct { f, g func() n int }`; `var x = 1`
	if want := (size{tokens: 2 + 13 + 4, lines: 11, long: 0, functions: 2}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got, _ := measure("a.go", []byte("package a\n\n//"+strings.Repeat("ü", 119)+"\n\t//"+strings.Repeat("x", 115)+"\n")); got.long != 2 {
		t.Errorf("%d long lines, want 2", got.long)
	}
	if got, _ := measure("a.go", []byte("package a\n\nvar x = f(\n\t1,\n\t\"a \"+\n\t\t\"b\",\n)\n")); got.tokens != 2+4+5 {
		t.Errorf("%d tokens, want 11: the layout was counted", got.tokens)
	}
	if _, err := measure("a.go", []byte("no Go")); err == nil {
		t.Error("a file that is not Go was measured")
	}
}

func TestCompare_AboveItsCeiling_IsNamed(t *testing.T) {
	ceilings := map[string]int{longLines: 1, functionFields: 0}
	for _, w := range layers.Wings() {
		ceilings[w] = 10
	}
	if table, above := compare(map[string]size{"show": {tokens: 10, long: 1}}, ceilings); len(above) > 0 || !strings.Contains(table, "together") {
		t.Errorf("%q\n%s", above, table)
	}
	delete(ceilings, "api")
	_, above := compare(map[string]size{"show": {tokens: 11}, "cmd": {long: 2, functions: 1}, "api": {tokens: 1}}, ceilings)
	want := "api: 1, the ceiling is 0; show: 11, the ceiling is 10; long lines: 2, the ceiling is 1; function fields: 1, the ceiling is 0"
	if got := strings.Join(above, "; "); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestParseCeilings_OfTheTree_HasEachWing(t *testing.T) {
	ceilings, err := parseCeilings(ceilingsText)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(layers.Wings(), longLines, functionFields) {
		if _, ok := ceilings[name]; !ok {
			t.Errorf("ceilings.tsv lacks %s", name)
		}
	}
	if _, err := parseCeilings("show\tmany"); err == nil {
		t.Error("a word was read as a ceiling")
	}
}
