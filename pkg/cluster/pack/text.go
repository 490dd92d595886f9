// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"fmt"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/pkg/cluster/ask"
)

// String returns the plan for people. It replaces characters that a terminal would interpret.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, p.headline())
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
		fmt.Fprintf(&b, "Free GPUs: %d before, %d after. The scheduler's allocator proved each step.\n", p.Free[0],
			p.Free[1])
	}
	if commands := p.Commands(); len(commands) > 0 {
		fmt.Fprintln(&b, "Commands, each after the last pod has come back:")
		for _, c := range commands {
			fmt.Fprintf(&b, "  %s\n", c)
		}
	}
	if len(p.Blockers) > 0 {
		fmt.Fprintln(&b, "In the way:")
	}
	for _, text := range p.Blockers {
		fmt.Fprintf(&b, "  - %s\n", text)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "  note: %s\n", n)
	}
	return printable(b.String())
}

// Count is the number of moves as a text.
func (p Plan) Count() string { return count(len(p.Moves), "move") }

// headline is the answer in a sentence.
func (p Plan) headline() string {
	moves := p.Count()
	switch {
	case p.Node != "" && p.Result == Fits:
		return fmt.Sprintf("Node %s is empty: no pod has devices there.", p.Node)
	case p.Node != "" && p.Result == Moves:
		return fmt.Sprintf("Node %s is empty after %s:", p.Node, moves)
	case p.Node != "" && len(p.Moves) > 0:
		return fmt.Sprintf("Node %s cannot be emptied. %s would be possible:", p.Node, moves)
	case p.Node != "":
		return fmt.Sprintf("Node %s cannot be emptied.", p.Node)
	case p.Result == Fits:
		return fmt.Sprintf("Room for %s on node %s now, with %s: no pod needs to move.", p.Goal, p.Place.Node,
			ask.List(p.Place.Devices))
	case p.Result == Moves:
		return fmt.Sprintf("Room for %s on node %s after %s:", p.Goal, p.Place.Node, moves)
	}
	return fmt.Sprintf("No moves were found that make room for %s.", p.Goal)
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
	return text
}

func (p Place) String() string { return p.Node + " " + strings.Join(p.Devices, ", ") }

// Commands returns what makes the moves: cordons that keep newcomers from the GPUs, then one pod after the other. A
// node that is to be empty stays cordoned.
func (p Plan) Commands() (out []string) {
	if len(p.Moves) == 0 || p.Result != Moves {
		return nil
	}
	var gpus []string
	for _, g := range p.Hold {
		gpus = append(gpus, g.String())
	}
	held := strings.Join(gpus, " ")
	if held != "" {
		out = append(out, "kubectl gpu cordon "+held)
	}
	for _, m := range p.Moves {
		for _, pod := range m.Pods {
			namespace, name, _ := strings.Cut(pod, "/")
			out = append(out, "kubectl delete pod -n "+namespace+" "+name)
		}
	}
	if held != "" && p.Node == "" {
		out = append(out, "kubectl gpu uncordon "+held)
	}
	return out
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// printable replaces characters that a terminal would interpret, because names of other drivers' devices are others'
// texts.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
