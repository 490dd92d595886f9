// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/pkg/gpu"
)

// Drawing draws nodes as text.
type Drawing struct {
	// Width is the number of columns of the longest line, at least 40.
	Width int
	// Colours allows escape sequences of a terminal.
	Colours bool
}

// letters mark the holders of a GPU. Further holders have the last one.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ#"

func letter(i int) byte { return letters[min(i, len(letters)-1)] }

// Node draws each GPU with its memory to scale. A letter fills the part of each holder, dots are free, and bars divide
// the memory slices of a GPU with MIG. Brackets on the left join the members of an allocated NVLink group.
func (d Drawing) Node(n Node) string {
	d.Width = max(d.Width, 40)
	free := 0
	var models []string
	for _, g := range n.GPUs {
		if model := strings.TrimPrefix(g.Product, "NVIDIA "); model != "" && !slices.Contains(models, model) {
			models = append(models, model)
		}
		if g.Available() {
			free++
		}
	}
	var out strings.Builder
	out.WriteString(d.fit(fmt.Sprintf("%s: %d of %d GPUs free  %s", n.Name, free, len(n.GPUs),
		strings.Join(models, ", "))) + "\n")
	if n.Incomplete {
		out.WriteString(d.fit("  slices are missing, as during an update") + "\n")
	}
	brackets := bracketsOf(n)
	inner := d
	inner.Width = max(inner.Width-len(brackets)-1, 1)
	for i, g := range n.GPUs {
		lines := inner.gpu(g)
		for j, line := range lines {
			for _, column := range brackets {
				out.WriteByte(column.at(i, g.Name, j == 0, j == len(lines)-1))
			}
			out.WriteString(" " + line + "\n")
		}
	}
	return out.String()
}

// bracket is a column of the left margin. Its groups do not overlap.
type bracket []span

type span struct {
	first, last int
	members     []string
}

func bracketsOf(n Node) []bracket {
	var out []bracket
next:
	for _, group := range n.Groups {
		s := span{first: -1, members: group.Members}
		for i, g := range n.GPUs {
			if slices.Contains(group.Members, g.Name) {
				if s.first < 0 {
					s.first = i
				}
				s.last = i
			}
		}
		for c := range out {
			if !slices.ContainsFunc(out[c], func(o span) bool { return s.first <= o.last && o.first <= s.last }) {
				out[c] = append(out[c], s)
				continue next
			}
		}
		out = append(out, bracket{s})
	}
	return out
}

// at returns the character beside one line of the i-th GPU.
func (b bracket) at(i int, name string, top, bottom bool) byte {
	for _, s := range b {
		switch {
		case i < s.first || i > s.last:
		case !slices.Contains(s.members, name):
			return ':'
		case i == s.first && top:
			return '/'
		case i == s.last && bottom:
			return '\\'
		default:
			return '|'
		}
	}
	return ' '
}

func (d Drawing) gpu(g GPU) []string {
	state := g.Summary()
	if c := g.Condition(); c != "ok" {
		state += ", " + c
	}
	head := d.fit(g.Name + "  " + state)
	if g.Health != "" || g.Closed != "" || len(g.Taints) > 0 {
		head = g.Colour().Paint(d.Colours, head)
	}
	lines := []string{head, "  " + d.bar(g)}
	if g.MemorySlices > 0 && g.FreeSlices > 0 && g.FreeSlices < g.MemorySlices {
		line := fmt.Sprintf("  %d of %d slices free", g.FreeSlices, g.MemorySlices)
		if g.Condition() == "ok" {
			line += fmt.Sprintf(", %.0f%% fragmented", 100*g.Fragmentation())
		}
		lines = append(lines, d.fit(line))
	}
	for i, a := range g.Allocations {
		mark := letter(i)
		if a.Admin {
			mark = '+'
		}
		lines = append(lines, d.colour(i, d.fit("  "+string(mark)+" "+g.Part(a)+"  "+a.Claim.String()+pods(a.Pods))))
	}
	return lines
}

// Part names the part of the GPU that an allocation has, such as 1g.10gb or 20Gi, or is "whole".
func (g GPU) Part(a Allocation) string {
	var parts []string
	switch {
	case a.Admin:
		parts = append(parts, "admin access")
	case a.Kind == gpu.KindMIG:
		parts = append(parts, a.Profile)
	case a.Kind == gpu.KindGroup:
		parts = append(parts, a.Device)
	}
	if a.Share != "" && a.ShareBytes > 0 && (a.Kind == gpu.KindMIG || a.ShareBytes < g.MemoryBytes) {
		parts = append(parts, resource.NewQuantity(a.ShareBytes, resource.BinarySI).String())
	}
	if a.Compute > 0 {
		parts = append(parts, fmt.Sprintf("%d%%", a.Compute))
	}
	if len(parts) == 0 {
		return "whole"
	}
	return strings.Join(parts, " ")
}

func pods(names []string) string {
	switch len(names) {
	case 0:
		return " (unreserved)"
	case 1:
		if strings.HasPrefix(names[0], PodGroup) {
			return " (" + names[0] + ")"
		}
		return " (pod " + names[0] + ")"
	}
	return fmt.Sprintf(" (%d pods)", len(names))
}

// bar draws the memory to scale.
func (d Drawing) bar(g GPU) string {
	pieces := max(g.MemorySlices, 1)
	cell := max((min(d.Width, 72)-4)/pieces, 2) // With the bar that ends it.
	cells := slices.Repeat([]byte{'.'}, pieces*cell)
	owner := slices.Repeat([]int{-1}, len(cells))
	for i := cell - 1; i < len(cells); i += cell {
		cells[i] = '|'
	}
	next := map[string]int{} // By device: the end of its last share.
	for i, a := range g.Allocations {
		start, end := 0, len(cells)-1
		capacity := g.MemoryBytes
		if a.Kind == gpu.KindMIG {
			start, end = a.Start*cell, (a.Start+a.Size)*cell-1
			capacity = g.MemoryBytes * int64(a.Size) / int64(pieces)
		}
		end = min(end, len(cells)-1)
		if a.Admin || start >= end {
			continue
		}
		if a.Share != "" && a.ShareBytes > 0 && capacity > 0 {
			whole := end - start
			start = max(start, next[a.Device])
			end = min(end, start+max(1, int(int64(whole)*min(a.ShareBytes, capacity)/capacity)))
			next[a.Device] = end
		}
		for x := start; x < end; x++ {
			cells[x], owner[x] = letter(i), i
		}
	}
	if !d.Colours {
		return "|" + string(cells)
	}
	out := "|"
	for x := 0; x < len(cells); {
		end := x
		for end < len(cells) && owner[end] == owner[x] {
			end++
		}
		out += d.colour(owner[x], string(cells[x:end]))
		x = end
	}
	return out
}

// holderColours are the colours of a GPU's holders, in turn.
var holderColours = []Colour{Cyan, Green, Magenta, Blue}

// colour paints text in the colour of a holder. Index -1 is free memory.
func (d Drawing) colour(holder int, text string) string {
	if holder < 0 {
		return text
	}
	return holderColours[holder%len(holderColours)].Paint(d.Colours, text)
}

// fit cuts text to the width, and replaces characters that a terminal would interpret.
func (d Drawing) fit(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	return strings.TrimRight(ansi.Truncate(text, d.Width, "~"), " ")
}
