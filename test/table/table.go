// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package table lays out text in columns for a terminal of a given width.
package table

import (
	"strings"
	"unicode/utf8"
)

// gap separates two columns.
const gap = 2

// narrowest is the width to which a column can shrink.
const narrowest = 8

// Table is a list of rows. The last cell of a row that has fewer cells than others extends to the right margin.
type Table struct {
	// Indent is the number of blanks before the first column.
	Indent int
	rows   [][]string
}

// Row adds a row. A row without cells is an empty line.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Format lays the table out in lines of at most width characters. Where the columns need more, the widest are wrapped.
func (t *Table) Format(width int) string {
	widths := t.widths(width - t.Indent)
	var b strings.Builder
	for _, row := range t.rows {
		var cells [][]string
		height, offset := 0, t.Indent
		for i, cell := range row {
			room := widths[i]
			if i == len(row)-1 {
				room = width - offset
			}
			if i < len(row)-1 || len(row) == len(widths) {
				room = min(room, widths[i])
			}
			cells = append(cells, Wrap(cell, room))
			height = max(height, len(cells[i]))
			offset += widths[i] + gap
		}
		for line := range max(height, 1) {
			text := ""
			for i, cell := range cells {
				if line < len(cell) && cell[line] != "" {
					text += strings.Repeat(" ", t.start(widths, i)-utf8.RuneCountInString(text)) + cell[line]
				}
			}
			b.WriteString(text + "\n")
		}
	}
	return b.String()
}

// start is the position of a column.
func (t *Table) start(widths []int, column int) int {
	at := t.Indent
	for _, w := range widths[:column] {
		at += w + gap
	}
	return at
}

// widths returns the widths of the columns, including wrapped ones.
func (t *Table) widths(room int) []int {
	columns := 0
	for _, row := range t.rows {
		columns = max(columns, len(row))
	}
	widths := make([]int, columns)
	for _, row := range t.rows {
		for i, cell := range row {
			if i < len(row)-1 || len(row) == columns {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	for {
		total, widest := gap*(columns-1), 0
		for i, w := range widths {
			total += w
			if w > widths[widest] {
				widest = i
			}
		}
		if total <= room || widths[widest] <= narrowest {
			return widths
		}
		widths[widest]--
	}
}

// Wrap breaks a text at blanks into lines of at most width characters, and keeps the text's indentation. It breaks a
// word that is longer than a line.
func Wrap(text string, width int) []string {
	indent := text[:len(text)-len(strings.TrimLeft(text, " "))]
	if indent != "" {
		lines := Wrap(text[len(indent):], max(width-len(indent), 1))
		for i := range lines {
			lines[i] = indent + lines[i]
		}
		return lines
	}
	lines := []string{""}
	used := 0 // of the last line
	for word := range strings.FieldsSeq(text) {
		length := utf8.RuneCountInString(word)
		if used > 0 && used+1+length > width {
			lines, used = append(lines, ""), 0
		}
		if used > 0 {
			lines[len(lines)-1] += " "
			used++
		}
		for ; length > width; length -= width {
			at := 0
			for range width {
				_, size := utf8.DecodeRuneInString(word[at:])
				at += size
			}
			lines[len(lines)-1] = word[:at]
			lines, word = append(lines, ""), word[at:]
		}
		lines[len(lines)-1] += word
		used += length
	}
	return lines
}
