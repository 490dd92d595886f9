// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/read"
)

func (a *Answer) undecided(because string, args ...any) {
	a.Result = Undecided
	a.Summary = fmt.Sprintf("%s: undecided, %s.", a.Subject, fmt.Sprintf(because, args...))
}

func (a *Answer) wait(text string, reasons ...Reason) {
	a.Result, a.Reasons = Waits, append(a.Reasons, reasons...)
	a.Summary = fmt.Sprintf("%s waits: %s.", a.Subject, text)
}

// conclude sets the result from the results of the open nodes.
func (a *Answer) conclude(n nodes, states read.States) {
	var undecided []string
	text := ""
	for _, s := range n.open {
		switch s.result {
		case ask.Yes:
			a.Fits = append(a.Fits, s.Names...)
		case ask.Unknown:
			undecided = append(undecided, s.Names...)
		case ask.Fatal:
			text = s.text
		}
	}
	slices.Sort(a.Fits)
	switch {
	case text != "":
		a.wait("the scheduler's attempt fails", Reason{Text: ask.Failure(text)})
		a.Fits = nil
	case len(a.Fits) > 0:
		a.Result, a.Summary = Fits, fmt.Sprintf("%s fits on %s now.", a.Subject, ask.List(a.Fits))
		if states.Failed(read.ResourceClaims) {
			a.Summary = fmt.Sprintf("%s fits on %s now, unless claims that could not be read hold the devices.",
				a.Subject, ask.List(a.Fits))
		}
		if len(undecided) > 0 {
			slices.Sort(undecided)
			a.Reasons = append(a.Reasons, Reason{Text: causeUndecided, Nodes: undecided})
		}
	case len(undecided) > 0:
		a.Result = Undecided
		a.Summary = fmt.Sprintf("%s: undecided for %d of %d nodes, because the search takes long; no other node can "+
			"allocate its devices.",
			a.Subject, len(undecided), n.count)
	default:
		a.wait(fmt.Sprintf("0 of %d nodes can allocate its devices", n.count))
	}
}

// reconsider qualifies an answer that devices are free, if the scheduler reports reasons besides devices, or if nothing
// shows that it works.
func (a *Answer) reconsider(others []Reason, silence string) {
	if a.Result == Fits && (silence != "" || len(others) > 0) {
		a.Result = Free
		a.Summary = fmt.Sprintf("%s: its devices are free on %s, but %s.", a.Subject, ask.List(a.Fits),
			cmp.Or(silence, "the scheduler reports other reasons"))
	}
	a.Reasons = append(a.Reasons, others...)
}

// addExcluded adds the nodes that the pod cannot use, with the exclusions first that keep it from free devices.
func (a *Answer) addExcluded(n nodes) {
	type group struct {
		text string
		free bool
	}
	byGroup := map[group][]string{}
	for _, s := range n.closed {
		for _, name := range s.Names {
			g := group{n.excluded[name][0].Text, s.result == ask.Yes}
			byGroup[g] = append(byGroup[g], name)
		}
	}
	var out []Reason
	for g, names := range byGroup {
		slices.Sort(names)
		text := g.text
		if g.free {
			text += ", though its devices are free"
		}
		out = append(out, Reason{Text: text, Nodes: names})
	}
	slices.SortFunc(out, func(x, y Reason) int { return strings.Compare(x.Text, y.Text) })
	a.Reasons = append(a.Reasons, out...)
}

// CuresHeading is the line before the cures in the text of an answer.
const CuresHeading = "Any one of these lets it fit:"

// String returns the answer for people: the result, the reasons, and the cures last. It replaces characters that a
// terminal would interpret, because selectors and Events are other users' texts.
func (a Answer) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, a.Summary)
	for _, r := range a.Reasons {
		switch len(r.Nodes) {
		case 0:
			fmt.Fprintf(&b, "  - %s\n", r.Text)
		case 1:
			fmt.Fprintf(&b, "  - node %s: %s\n", r.Nodes[0], r.Text)
		default:
			fmt.Fprintf(&b, "  - %d nodes (%s): %s\n", len(r.Nodes), ask.List(r.Nodes), r.Text)
		}
	}
	for _, n := range a.Notes {
		fmt.Fprintf(&b, "  note: %s\n", n)
	}
	if len(a.Devices) > 0 {
		fmt.Fprintln(&b, "Devices, of one node of each shape:")
	}
	for _, line := range deviceLines(a.Devices) {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	if len(a.Cures) > 0 {
		fmt.Fprintln(&b, CuresHeading)
	}
	for _, c := range a.Cures {
		at := "at once"
		if len(c.Release) > 0 {
			at = "then"
		}
		fmt.Fprintf(&b, "  - %s; %s it fits on %s\n", c.Text, at, ask.List(c.Nodes))
	}
	if a.Change != "" {
		fmt.Fprintf(&b, "%s.\n", a.Change)
	}
	if a.Result == Waits && len(a.Cures) == 0 && a.JudgedBy != "" {
		fmt.Fprintln(&b, "No single change was found that lets it fit.")
	}
	if a.JudgedBy != "" {
		fmt.Fprintf(&b, "Judged by %s.\n", a.JudgedBy)
	}
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, b.String())
}

// deviceLines joins the devices of a node that have the same reasons.
func deviceLines(all []ask.Obstacle) []string {
	type group struct{ node, request, text string }
	var order []group
	devices := map[group][]string{}
	for _, d := range all {
		text := "could get it"
		if len(d.Reasons) > 0 {
			text = strings.Join(d.Reasons, "; ")
		}
		g := group{d.Node, d.Request, text}
		if devices[g] == nil {
			order = append(order, g)
		}
		devices[g] = append(devices[g], d.Device)
	}
	var out []string
	for _, g := range order {
		out = append(out, fmt.Sprintf("node %s, request %s: %s: %s", g.node, g.request, ask.List(devices[g]), g.text))
	}
	return out
}

// age is a duration for people.
func age(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d d", int(d.Hours())/24)
	case d >= time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	case d >= time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d s", max(0, int(d.Seconds())))
}
