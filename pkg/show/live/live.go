// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package live draws the GPUs of a cluster as a screen of a terminal that is redrawn. Each GPU has a row with bars, and
// so has each part of it that a claim has.
package live

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/show/view"
)

// Row is a GPU, or a claim's part of it, with its measured use.
type Row struct {
	view.GPU
	view.GPUUse
	// part is nil for a GPU.
	part *view.Allocation
}

// Use has the measurements of a cluster.
type Use struct {
	GPUs  map[view.GPUName]view.GPUUse
	Parts map[view.PartName]view.GPUUse
}

// Screen has the lines of a terminal. The zero Screen has no rows and no size.
type Screen struct {
	// Width and Height are the size of the terminal, in columns and lines.
	Width, Height int
	// Colours allows escape sequences.
	Colours bool
	// Order is one of Orders, by which the rows are sorted. Empty is the first of them.
	Order string

	all, shown []Row
	parts      map[view.PartName]view.GPUUse
	// wholes hides the parts of GPUs.
	wholes bool
	// updated is when the rows were read, and problem why newer ones could not be.
	updated time.Time
	problem string
	filter  string
	// typing means that keys are added to the filter.
	typing bool
	// matching is the number of GPUs that the filter leaves.
	matching int
	top      int
}

// byPlace orders rows by node and GPU.
func byPlace(a, b Row) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name)) }

func unhealthy(r Row) int {
	if r.Condition() == "ok" {
		return 0
	}
	return 1
}

// orders are the ways to sort rows, which the key s changes in turn, with their own keys.
var orders = []struct{ name, key string }{
	{"node", "n"}, {"utilization", "u"}, {"used", "m"}, {"free", "f"}, {"health", "h"},
}

// Orders are the words of Screen.Order.
func Orders() (names []string) {
	for _, o := range orders {
		names = append(names, o.name)
	}
	return names
}

// order returns the number of the order among orders.
func (s *Screen) order() int { return max(0, slices.Index(Orders(), s.Order)) }

// compare compares rows in one of the orders. Equal ones are in the order of their places.
func compare(order string, a, b Row) int {
	found := 0
	switch order {
	case "utilization":
		found = view.Larger(a.Utilization, b.Utilization)
	case "used":
		found = view.Larger(a.MemoryUsedBytes, b.MemoryUsedBytes)
	case "free":
		found = cmp.Compare(b.FreeBytes(), a.FreeBytes())
	case "health":
		found = unhealthy(b) - unhealthy(a)
	}
	return cmp.Or(found, byPlace(a, b))
}

// Set replaces the rows.
func (s *Screen) Set(nodes []view.Node, use Use, now time.Time) {
	s.all, s.parts = nil, use.Parts
	for _, n := range nodes {
		for _, g := range n.GPUs {
			s.all = append(s.all, Row{GPU: g, GPUUse: use.GPUs[view.GPUName{Node: g.Node, Name: g.Name}]})
		}
	}
	s.updated, s.problem = now, ""
	s.arrange()
}

// Fail keeps the rows, and says why they are old. The problem is a sentence's part, without line breaks.
func (s *Screen) Fail(problem string) { s.problem = strings.Join(strings.Fields(problem), " ") }

func (s *Screen) arrange() {
	s.shown = slices.Clone(s.all)
	if want := strings.ToLower(s.filter); want != "" {
		s.shown = slices.DeleteFunc(s.shown, func(r Row) bool {
			text := strings.Join(append(r.Holders(), r.Node, r.Name, r.Product, r.Summary(), r.Condition()), " ")
			return !strings.Contains(strings.ToLower(text), want)
		})
	}
	order := orders[s.order()].name
	slices.SortStableFunc(s.shown, func(a, b Row) int { return compare(order, a, b) })
	s.matching = len(s.shown)
	if !s.wholes {
		s.shown = s.withParts(s.shown)
	}
	s.scroll(0)
}

// withParts adds a row for each partition and share below its GPU.
func (s *Screen) withParts(gpus []Row) (out []Row) {
	for _, r := range gpus {
		out = append(out, r)
		for i, a := range r.Allocations {
			if r.Part(a) != "whole" && a.Kind != gpu.KindGroup {
				out = append(out, Row{
					GPU: r.GPU, GPUUse: s.parts[view.PartName{Node: r.Node, Device: a.Device, Claim: a.Claim}],
					part: &r.Allocations[i],
				})
			}
		}
	}
	return out
}

func (s *Screen) scroll(by int) { s.top = max(0, min(s.top+by, len(s.shown)-s.page())) }

// page is the number of rows that fit.
func (s *Screen) page() int { return max(0, s.Height-3) }

// Key handles a key by its name, such as `q`, `up` or `pgdown`, and reports whether the user wants to leave. After a
// change of the size, an empty key keeps the rows on the screen.
func (s *Screen) Key(key string) (leave bool) {
	if s.typing {
		switch key {
		case "ctrl+c":
			return true
		case "enter":
			s.typing = false
		case "esc":
			s.typing, s.filter = false, ""
		case "backspace":
			letters := []rune(s.filter)
			s.filter = string(letters[:max(0, len(letters)-1)])
		case "space":
			s.filter += " "
		default:
			if len([]rune(key)) == 1 {
				s.filter += key
			}
		}
		s.arrange()
		return false
	}
	switch key {
	case "q", "ctrl+c":
		return true
	case "":
		s.scroll(0)
	case "s":
		s.Order = orders[(s.order()+1)%len(orders)].name
		s.arrange()
	case "p":
		s.wholes = !s.wholes
		s.arrange()
	case "/":
		s.typing = true
	case "esc":
		s.filter = ""
		s.arrange()
	case "down", "j":
		s.scroll(1)
	case "up", "k":
		s.scroll(-1)
	case "pgdown", "space":
		s.scroll(s.page())
	case "pgup":
		s.scroll(-s.page())
	case "home", "g":
		s.scroll(-len(s.shown))
	case "end", "G":
		s.scroll(len(s.shown))
	default:
		for _, o := range orders {
			if key == o.key {
				s.Order = o.name
				s.arrange()
			}
		}
	}
	return false
}

// column is a part of each row.
type column struct {
	head string
	// width is the number of columns; the last one shown may be shorter.
	width int
}

// cell returns the text of a column in a row, and its colour.
func (c column) cell(r Row) (text string, colour view.Colour) {
	if r.part != nil {
		switch c.head {
		case "NODE", "HEALTH", "MODEL", "USE":
			return "", 0
		case "GPU":
			return " └ " + r.Part(*r.part), 0
		case "HOLDERS":
			return r.part.Claim.String(), 0
		}
	}
	switch c.head {
	case "NODE":
		return r.Node, 0
	case "GPU":
		return r.Name, 0
	case "UTILIZATION":
		return percent(r.Utilization), view.LevelColour(r.Utilization)
	case "MEMORY":
		return memory(r), view.LevelColour(r.usedPart())
	case "HEALTH":
		return r.Condition(), r.Colour()
	case "USE":
		return r.Summary(), 0
	case "MODEL":
		return modelOf(r), 0
	}
	return holders(r), 0
}

// barWidth is the width of a bar.
const barWidth = 8

// columns are those that fit, in the order of their places. Columns that come last here are left out first.
func (s *Screen) columns() (out []column) {
	node, holder, model := 4, 7, 5
	for _, r := range s.shown {
		node, holder, model = max(node, len(r.Node)), max(holder, len(holders(r))), max(model, len(modelOf(r)))
	}
	all := []column{
		{"NODE", min(node, 24)},
		{"GPU", 16},
		{"UTILIZATION", barWidth + 5},
		{"MEMORY", barWidth + 9},
		{"HEALTH", 9},
		{"USE", 12},
		{"MODEL", min(model, 22)},
		{"HOLDERS", min(holder, 60)},
	}
	left := s.Width
	for i, c := range all {
		needed := c.width
		switch c.head {
		case "MODEL":
			needed += 15 // Who holds the GPU is worth more.
		case "HOLDERS":
			needed = 9
		}
		if i > 0 && needed > left {
			continue
		}
		left -= c.width + 1
		out = append(out, c)
	}
	return out
}

func modelOf(r Row) string { return cmp.Or(strings.TrimPrefix(r.Product, "NVIDIA "), "-") }

func holders(r Row) string { return cmp.Or(strings.Join(r.Holders(), ","), "-") }

// usedPart is the part of the memory that is used, or nil.
func (r Row) usedPart() *float64 {
	if r.MemoryUsedBytes == nil || r.MemoryTotalBytes == nil || *r.MemoryTotalBytes <= 0 {
		return nil
	}
	p := *r.MemoryUsedBytes / *r.MemoryTotalBytes
	return &p
}

func memory(r Row) string {
	if r.MemoryUsedBytes == nil {
		return gauge(nil) + " -"
	}
	text := gib(*r.MemoryUsedBytes)
	if r.MemoryTotalBytes != nil {
		text += "/" + gib(*r.MemoryTotalBytes)
	}
	return gauge(r.usedPart()) + " " + text + "Gi"
}

func gib(bytes float64) string { return fmt.Sprintf("%.0f", bytes/(1<<30)) }

func percent(v *float64) string {
	if v == nil {
		return gauge(nil) + " -"
	}
	return gauge(v) + fmt.Sprintf(" %3.0f%%", 100**v)
}

// gauge is a bar. Without a value it is empty, which differs from that of 0.
func gauge(v *float64) string {
	if v == nil {
		return strings.Repeat(" ", barWidth)
	}
	full := max(0, min(barWidth, int(*v*barWidth+0.5)))
	return strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
}

// pad makes a text so many columns wide.
func pad(text string, width int) string {
	text = ansi.Truncate(text, width, "…")
	return text + strings.Repeat(" ", width-ansi.StringWidth(text))
}

// String is the screen: as many lines as it is high, none longer than it is wide.
func (s *Screen) String() string {
	columns := s.columns()
	head := make([]string, len(columns))
	left := s.Width
	for i, c := range columns {
		columns[i].width = max(0, min(c.width, left))
		left -= c.width + 1
		head[i] = pad(c.head, columns[i].width)
	}
	out := []string{pad(s.summary(), s.Width), view.Grey.Paint(s.Colours, strings.Join(head, " "))}
	for _, r := range s.shown[min(s.top, len(s.shown)):min(s.top+s.page(), len(s.shown))] {
		cells := make([]string, len(columns))
		for i, c := range columns {
			text, colour := c.cell(r)
			cells[i] = colour.Paint(s.Colours, pad(text, c.width))
		}
		out = append(out, strings.Join(cells, " "))
	}
	for len(out) < s.Height-1 {
		out = append(out, "")
	}
	return strings.Join(append(out, view.Grey.Paint(s.Colours, pad(s.footer(), s.Width))), "\n")
}

func (s *Screen) summary() string {
	free, bad := 0, 0
	for _, r := range s.all {
		bad += unhealthy(r)
		if r.Available() {
			free++
		}
	}
	text := fmt.Sprintf("%d of %d GPUs free", free, len(s.all))
	if bad > 0 {
		text += fmt.Sprintf(", %d not ok", bad)
	}
	switch {
	case s.problem != "" && s.updated.IsZero():
		return "nothing was read yet: " + s.problem
	case s.problem != "":
		return text + " at " + s.updated.Format(time.TimeOnly) + "; nothing newer was read: " + s.problem
	case s.updated.IsZero():
		return "reading the cluster"
	}
	return text + " at " + s.updated.Format(time.TimeOnly)
}

func (s *Screen) footer() string {
	if s.typing {
		return "filter: " + s.filter + "▏  enter keeps it, esc removes it"
	}
	last := min(s.top+s.page(), len(s.shown))
	text := fmt.Sprintf("%d-%d of %d by %s", min(s.top+1, last), last, len(s.shown), orders[s.order()].name)
	if n := len(s.shown) - s.matching; n > 0 {
		text = fmt.Sprintf("rows %d-%d of %d GPUs and %d parts by %s", min(s.top+1, last), last, s.matching, n,
			orders[s.order()].name)
	}
	if s.filter != "" {
		text += fmt.Sprintf(" with %q", s.filter)
	}
	return text + "  q quit  s/n/u/m/f/h sort  p parts  / filter  ↑↓"
}
