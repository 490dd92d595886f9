// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/pkg/cluster/ask"
)

// String returns the plan for people. It replaces characters that a terminal would interpret.
func (p Plan) String() string {
	var b strings.Builder
	wish := capital(p.Wish)
	switch {
	case p.Result == Fits && p.Place != nil:
		fmt.Fprintf(&b, "%s fits on node %s now, with %s: no pod needs to move.\n", wish, p.Place.Node, ask.List(p.Place.Devices))
	case p.Result == Fits:
		fmt.Fprintf(&b, "%s: no pod needs to move.\n", wish)
	case p.Result == Blocked && len(p.Moves) == 0:
		fmt.Fprintf(&b, "%s: no moves were found that free the devices.\n", wish)
	case p.Place != nil:
		fmt.Fprintf(&b, "%s fits on node %s after %s:\n", wish, p.Place.Node, count(len(p.Moves), "move"))
	default:
		fmt.Fprintf(&b, "%s: %s:\n", wish, count(len(p.Moves), "move"))
	}
	for i, m := range p.Moves {
		fmt.Fprintf(&b, "  %d. %s\n", i+1, m)
		for _, n := range m.Notes {
			fmt.Fprintf(&b, "     %s\n", n)
		}
	}
	if p.Place != nil && p.Result == Moves {
		fmt.Fprintf(&b, "Then it gets %s of node %s.\n", strings.Join(p.Place.Devices, ", "), p.Place.Node)
	}
	if len(p.Moves) > 0 {
		fmt.Fprintf(&b, "Free GPUs: %d before, %d after. The scheduler's allocator proved each step.\n", p.Free[0], p.Free[1])
	}
	if len(p.Blockers) > 0 {
		fmt.Fprintln(&b, "These cannot move:")
	}
	for _, text := range p.Blockers {
		fmt.Fprintf(&b, "  - %s\n", text)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "  note: %s\n", n)
	}
	return printable(b.String())
}

// String returns the step for people.
func (m Move) String() string {
	text := fmt.Sprintf("move %s from %s to %s", ask.List(m.Pods), m.From, m.To)
	var about []string
	if m.Bytes > 0 {
		about = append(about, resource.NewQuantity(m.Bytes, resource.BinarySI).String())
	}
	switch {
	case m.Utilization == nil:
	case *m.Utilization < busyAt:
		about = append(about, "idle")
	default:
		about = append(about, fmt.Sprintf("%.0f%% busy", 100**m.Utilization))
	}
	if len(m.Budgets) > 0 {
		about = append(about, "budget "+ask.List(m.Budgets))
	}
	if len(about) > 0 {
		text += " (" + strings.Join(about, ", ") + ")"
	}
	if m.Frees != nil {
		text += fmt.Sprintf("; GPU %s is free", m.Frees)
	}
	return text
}

func (p Place) String() string { return p.Node + " " + strings.Join(p.Devices, ", ") }

// Win is a row of the table of a defragmentation: a GPU, and the moves that free it.
type Win struct {
	GPU   GPU
	Moves int
	Pods  []string
	// Total is the number of moves so far.
	Total int
}

// Wins returns the GPUs that the moves free, in their order.
func (p Plan) Wins() (out []Win) {
	var w Win
	for _, m := range p.Moves {
		w.Moves++
		w.Total++
		w.Pods = append(w.Pods, m.Pods...)
		if m.Frees != nil {
			w.GPU = *m.Frees
			out = append(out, w)
			w = Win{Total: w.Total}
		}
	}
	return out
}

// Nodes are those on which the moves change something, sorted.
func (p Plan) Nodes() []string {
	var out []string
	for _, m := range p.Moves {
		out = append(out, m.From.Node, m.To.Node)
	}
	if p.Place != nil {
		out = append(out, p.Place.Node)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func capital(text string) string {
	runes := []rune(text)
	if len(runes) > 0 {
		runes[0] = unicode.ToUpper(runes[0])
	}
	return string(runes)
}

// printable replaces characters that a terminal would interpret, because names of other drivers' devices are others' texts.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
