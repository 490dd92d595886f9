// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package live draws the GPUs of a cluster as a screen of a terminal that is redrawn: a row for each GPU, with bars.
package live

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpu-dra-driver/pkg/show/view"
)

// Row is a GPU with its measured use.
type Row struct {
	view.GPU
	view.GPUUse
}

// Screen has the lines of a terminal. The zero Screen has no rows and no size.
type Screen struct {
	// Width and Height are the size of the terminal, in columns and lines.
	Width, Height int
	// Colours allows escape sequences.
	Colours bool

	all, shown []Row
	// updated is when the rows were read, and problem why newer ones could not be.
	updated time.Time
	problem string
	sort    int
	filter  string
	// typing means that keys are added to the filter.
	typing bool
	top    int
}

// byPlace orders rows by node and GPU.
func byPlace(a, b Row) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name)) }

// descending orders a value that was not measured last.
func descending(a, b *float64) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*b, *a)
}

func unhealthy(r Row) int {
	if r.Condition() == "ok" {
		return 0
	}
	return 1
}

// orders are the ways to sort rows, which a key changes in turn.
var orders = []string{"node", "utilization", "memory", "health"}

// compare compares rows in one of the orders. Equal ones are in the order of their places.
func compare(order string, a, b Row) int {
	found := 0
	switch order {
	case "utilization":
		found = descending(a.Utilization, b.Utilization)
	case "memory":
		found = descending(a.MemoryUsedBytes, b.MemoryUsedBytes)
	case "health":
		found = unhealthy(b) - unhealthy(a)
	}
	return cmp.Or(found, byPlace(a, b))
}

// Set replaces the rows.
func (s *Screen) Set(nodes []view.Node, use map[view.GPUName]view.GPUUse, now time.Time) {
	s.all = nil
	for _, n := range nodes {
		for _, g := range n.GPUs {
			s.all = append(s.all, Row{g, use[view.GPUName{Node: g.Node, Name: g.Name}]})
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
	slices.SortStableFunc(s.shown, func(a, b Row) int { return compare(orders[s.sort], a, b) })
	s.scroll(0)
}

func (s *Screen) scroll(by int) { s.top = max(0, min(s.top+by, len(s.shown)-s.page())) }

// page is the number of rows that fit.
func (s *Screen) page() int { return max(0, s.Height-3) }

// Key handles a key by its name, such as `q`, `up` or `pgdown`, and reports whether the user wants to leave. After a change of the size,
// an empty key keeps the rows on the screen.
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
		s.sort = (s.sort + 1) % len(orders)
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
	}
	return false
}

// column is a part of each row.
type column struct {
	head string
	// width is the number of columns; the last one shown may be shorter.
	width int
}

// cell returns the text of a column in a row, and its colour's code of the terminal, or 0.
func (c column) cell(r Row) (text string, colour int) {
	switch c.head {
	case "NODE":
		return r.Node, 0
	case "GPU":
		return r.Name, 0
	case "UTILIZATION":
		return percent(r.Utilization), level(r.Utilization)
	case "MEMORY":
		return memory(r), level(r.part())
	case "HEALTH":
		return r.Condition(), health(r)
	case "USE":
		return r.Summary(), 0
	case "MODEL":
		return modelOf(r), 0
	}
	return holders(r), 0
}

const (
	red, green, yellow, grey = 31, 32, 33, 90
	bar                      = 8
)

// columns are those that fit, in the order of their places. Columns that come last here are left out first.
func (s *Screen) columns() (out []column) {
	node, holder, model := 4, 7, 5
	for _, r := range s.shown {
		node, holder, model = max(node, len(r.Node)), max(holder, len(holders(r))), max(model, len(modelOf(r)))
	}
	all := []column{
		{"NODE", min(node, 24)}, {"GPU", 16}, {"UTILIZATION", bar + 5}, {"MEMORY", bar + 9}, {"HEALTH", 9}, {"USE", 12}, {"MODEL", min(model, 22)},
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

// part is the part of the memory that is used, or nil.
func (r Row) part() *float64 {
	if r.MemoryUsedBytes == nil || r.MemoryTotalBytes == nil || *r.MemoryTotalBytes <= 0 {
		return nil
	}
	p := *r.MemoryUsedBytes / *r.MemoryTotalBytes
	return &p
}

func memory(r Row) string {
	if r.MemoryUsedBytes == nil {
		return gauge(nil) + " " + pad("-", 8)
	}
	text := gib(*r.MemoryUsedBytes)
	if r.MemoryTotalBytes != nil {
		text += "/" + gib(*r.MemoryTotalBytes)
	}
	return gauge(r.part()) + " " + pad(text+"Gi", 8)
}

func gib(bytes float64) string { return fmt.Sprintf("%.0f", bytes/(1<<30)) }

func percent(v *float64) string {
	if v == nil {
		return gauge(nil) + " " + pad("-", 4)
	}
	return gauge(v) + fmt.Sprintf(" %3.0f%%", 100**v)
}

// gauge is a bar. Without a value it is empty, which differs from that of 0.
func gauge(v *float64) string {
	if v == nil {
		return strings.Repeat(" ", bar)
	}
	full := max(0, min(bar, int(*v*bar+0.5)))
	return strings.Repeat("█", full) + strings.Repeat("░", bar-full)
}

func level(v *float64) int {
	switch {
	case v == nil:
		return grey
	case *v >= 0.9:
		return red
	case *v >= 0.5:
		return yellow
	}
	return green
}

func health(r Row) int {
	if unhealthy(r) == 0 {
		return green
	}
	return red
}

// pad makes a text so many columns wide. Names of Kubernetes have a column for each letter.
func pad(text string, width int) string {
	letters := []rune(text)
	switch {
	case width <= 0:
		return ""
	case len(letters) > width:
		return string(letters[:width-1]) + "…"
	}
	return text + strings.Repeat(" ", width-len(letters))
}

func (s *Screen) paint(code int, text string) string {
	if !s.Colours || code == 0 {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", code, text)
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
	out := []string{pad(s.summary(), s.Width), s.paint(grey, strings.Join(head, " "))}
	for _, r := range s.shown[min(s.top, len(s.shown)):min(s.top+s.page(), len(s.shown))] {
		cells := make([]string, len(columns))
		for i, c := range columns {
			text, colour := c.cell(r)
			cells[i] = s.paint(colour, pad(text, c.width))
		}
		out = append(out, strings.Join(cells, " "))
	}
	for len(out) < s.Height-1 {
		out = append(out, "")
	}
	return strings.Join(append(out, s.paint(grey, pad(s.footer(), s.Width))), "\n")
}

func (s *Screen) summary() string {
	free, bad := 0, 0
	for _, r := range s.all {
		bad += unhealthy(r)
		if r.Use == view.Free && unhealthy(r) == 0 {
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
	text := fmt.Sprintf("%d-%d of %d by %s", min(s.top+1, last), last, len(s.shown), orders[s.sort])
	if s.filter != "" {
		text += fmt.Sprintf(" with %q", s.filter)
	}
	return text + "  q quit  s sort  / filter  ↑↓ scroll"
}
