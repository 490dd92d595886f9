// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package table_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/test/table"
)

func check(t *testing.T, tab *table.Table, width int, want string) {
	t.Helper()
	got := tab.Format(width)
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for line := range strings.Lines(got) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestFormat_ShortCells_AlignsColumns(t *testing.T) {
	tab := &table.Table{Indent: 2}
	tab.Row("POD", "DEVICE", "SHARE")
	tab.Row("a", "gpu-0000-1b-00-0", "20 GiB")
	tab.Row("long-name", "…", "")
	tab.Row()
	tab.Row("b", "-", "1 GiB")
	check(t, tab, 60, `
  POD        DEVICE            SHARE
  a          gpu-0000-1b-00-0  20 GiB
  long-name  …

  b          -                 1 GiB
`)
}

func TestFormat_TooWide_WrapsWidestColumn(t *testing.T) {
	tab := &table.Table{}
	tab.Row("a", "one two three four five six", "x")
	tab.Row("b", "seven", "y")
	check(t, tab, 20, `
a  one two three   x
   four five six
b  seven           y
`)
}

func TestFormat_ShortRow_LastCellExtendsToMargin(t *testing.T) {
	tab := &table.Table{}
	tab.Row("a", "b", "c", "d")
	tab.Row("pod", "waits: no node has a free GPU of this model")
	check(t, tab, 24, `
a    b  c  d
pod  waits: no node has
     a free GPU of this
     model
`)
}

func TestWrap_LongWord_IsBroken(t *testing.T) {
	for text, want := range map[string][]string{
		"":                {""},
		"abcdefghij":      {"abcd", "efgh", "ij"},
		"ab abcdef cd":    {"ab", "abcd", "ef", "cd"},
		"äöüß äöüßx":      {"äöüß", "äöüß", "x"},
		" abc de":         {" abc", " de"},
		"ab  cd\tab\nabc": {"ab", "cd", "ab", "abc"},
	} {
		if diff := cmp.Diff(want, table.Wrap(text, 4)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}
