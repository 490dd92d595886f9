// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/read"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// Result is the answer in one word.
type Result string

// The results.
const (
	// Settled means that there is nothing left to allocate.
	Settled Result = "settled"
	// Fits means that the allocator finds devices on a node that the pod can use.
	Fits Result = "fits"
	// Waits means that no node can allocate the claims, or that the scheduler does not try.
	Waits Result = "waits"
	// Undecided means that the time was up before a node was found, or that objects could not be read.
	Undecided Result = "undecided"
	// Lacks means that the pod has a node, and no device for an extended resource. It does not get one later.
	Lacks Result = "lacks"
)

// Answer explains a subject.
type Answer struct {
	Subject string `json:"subject"`
	Result  Result `json:"result"`
	Summary string `json:"summary"`
	// JudgedBy names the versions of the allocator and of the API server. It is empty if neither was asked.
	JudgedBy string `json:"judgedBy,omitempty"`
	// Fits are the nodes that can allocate the claims now.
	Fits []string `json:"fits,omitempty"`
	// Reasons say why other nodes cannot, or what comes before the devices.
	Reasons []Reason `json:"reasons,omitempty"`
	// GPUs counts the GPUs of the nodes with the reason CauseHeld. Claims have all or a part of HeldGPUs of them.
	GPUs     int `json:"gpus,omitempty"`
	HeldGPUs int `json:"heldGPUs,omitempty"`
	// Cures are the smallest changes after which a node can; the smallest is first.
	Cures []Cure `json:"cures,omitempty"`
	// Change says how the subject gets other claims, if a cure changes them.
	Change string `json:"change,omitempty"`
	// Notes are remarks about the objects, such as parameters that Prepare refuses.
	Notes []string `json:"notes,omitempty"`
	// Devices are the obstacles of the devices of one node of each shape, if asked for.
	Devices []ask.Obstacle `json:"devices,omitempty"`
}

// Reason is why some nodes cannot allocate the claims.
type Reason struct {
	Text  string   `json:"text"`
	Nodes []string `json:"nodes,omitempty"`
}

func (a *Answer) wait(text string, reasons ...Reason) {
	a.Result, a.Reasons = Waits, append(a.Reasons, reasons...)
	a.Summary = fmt.Sprintf("%s waits: %s.", a.Subject, text)
}

// settle answers if no allocation is to be made, and reports whether it did.
func (a *Answer) settle(c *Cluster, s Subject, w wanted, driver string) bool {
	if s.Pod != nil && s.Pod.DeletionTimestamp != nil || s.Claim != nil && s.Claim.DeletionTimestamp != nil {
		a.Result, a.Summary = Settled, a.Subject+" is being deleted."
		return true
	}
	if p := s.Pod; p != nil {
		switch {
		case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
			a.Result, a.Summary = Settled, fmt.Sprintf("%s has ended (%s).", a.Subject, p.Status.Phase)
			return true
		case p.Spec.NodeName != "":
			bound := c.Bound(p, driver)
			a.Result, a.Summary, a.Reasons, a.Change = bound.Result, bound.Summary, bound.Reasons, bound.Change
			return true
		}
		if reasons := gates(p); len(reasons) > 0 {
			a.wait("the scheduler does not look at it yet", reasons...)
			return true
		}
	}
	if len(w.missing) > 0 {
		text := "a claim is missing"
		if len(w.unserved) > 0 && len(w.missing) <= len(w.unserved) {
			text = "nothing serves its resources"
		}
		a.wait(text, w.missing...)
		return true
	}
	if len(w.unread) > 0 {
		a.Result = Undecided
		a.Summary = fmt.Sprintf("%s: undecided, because %s could not be read.", a.Subject, ask.List(w.unread))
		return true
	}
	if len(w.large) > 0 {
		a.Result = Undecided
		a.Summary = fmt.Sprintf("%s: undecided, because this is too large for the controller's memory: %s.", a.Subject,
			ask.List(w.large))
		return true
	}
	for _, claim := range w.allocated {
		if s.Pod != nil && !resourceclaim.CanBeReserved(claim) && !resourceclaim.IsReservedForPod(s.Pod, claim, true) {
			a.wait("too many pods use a claim", Reason{
				Text: fmt.Sprintf("claim %s has %d consumers, the most that the API allows", ask.NameOf(claim),
					len(claim.Status.ReservedFor)),
			})
			return true
		}
	}
	if len(w.waiting) > 0 {
		return false
	}
	a.Result, a.Summary = Settled, a.Subject+" asks for no device through DRA."
	if len(w.allocated) > 0 {
		a.Summary = fmt.Sprintf("%s: nothing is left to allocate.", a.Subject)
		if closed := a.closed(c, s, w); len(closed) > 0 {
			a.wait("its claims have devices, and the nodes of these devices do not take it", closed...)
		}
	}
	for _, claim := range w.allocated {
		a.Reasons = append(a.Reasons, Reason{Text: allocation(claim)})
	}
	a.Reasons = append(a.Reasons, otherReasons("the scheduler reports: ", s.Pod, c.Events)...)
	return true
}

// closed says why the nodes of the allocated claims do not take the pod. It is empty if one does, or if none is known.
func (a *Answer) closed(c *Cluster, s Subject, w wanted) (out []Reason) {
	if s.Pod == nil {
		return nil
	}
	for _, n := range c.Nodes {
		if n == nil || slices.ContainsFunc(w.allocated, func(claim *resourceapi.ResourceClaim) bool {
			selector := claim.Status.Allocation.NodeSelector
			return selector != nil && !ask.Matches(n, nil, nil, selector)
		}) {
			continue
		}
		text := excluded(n, s.Pod, w)
		if text == "" {
			return nil
		}
		out = append(out, Reason{Text: text, Nodes: []string{n.Name}})
	}
	return out
}

// allocation says which devices a claim has, and for whom.
func allocation(claim *resourceapi.ResourceClaim) string {
	var devices, users []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		devices = append(devices, r.Pool+"/"+r.Device)
	}
	for _, r := range claim.Status.ReservedFor {
		users = append(users, r.Name)
	}
	text := fmt.Sprintf("claim %s has %s", ask.NameOf(claim), ask.List(devices))
	if len(users) == 0 {
		return text + ", and no pod uses it"
	}
	return text + ", for " + ask.List(users)
}

// conclude sets the result from the results of the shapes that the pod can use.
func (a *Answer) conclude(nodes int, shapes []*shape, states read.States) {
	var undecided []string
	text := ""
	for _, s := range shapes {
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
			a.Subject, len(undecided), nodes)
	default:
		a.wait(fmt.Sprintf("0 of %d nodes can allocate its devices", nodes))
	}
}

// reconsider qualifies an answer that devices are free, if the scheduler reports reasons besides devices.
func (a *Answer) reconsider(others []Reason) {
	if a.Result == Fits && len(others) > 0 {
		a.Summary = fmt.Sprintf("%s: its devices are free on %s, but the scheduler reports other reasons.", a.Subject,
			ask.List(a.Fits))
	}
	a.Reasons = append(a.Reasons, others...)
}

// addExcluded adds the nodes that the pod cannot use, with the exclusions first that keep it from free devices.
func (a *Answer) addExcluded(shapes []*shape, why map[string]string) {
	type group struct {
		text string
		free bool
	}
	nodes := map[group][]string{}
	for _, s := range shapes {
		for _, name := range s.Names {
			g := group{why[name], s.result == ask.Yes}
			nodes[g] = append(nodes[g], name)
		}
	}
	var out []Reason
	for g, names := range nodes {
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
