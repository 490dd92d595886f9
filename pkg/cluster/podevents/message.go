// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podevents

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/pkg/cluster/why"
)

const (
	// messagePrefix begins each message.
	messagePrefix = "GPUs: "
	// maxMessageBytes is the number of bytes that the API allows for the message of an Event.
	maxMessageBytes = 1024
	// mostReasons, mostNotes and mostCures bound the parts of a message.
	mostReasons, mostNotes, mostCures = 3, 2, 3
)

// Text returns an answer as the text of an Event, without prefix and tail. It is empty if there is nothing to say.
// aside are sentences about other things that the pod asks for.
func Text(a why.Answer, aside []string) string {
	var parts []string
	switch a.Result {
	case why.Settled:
		return ""
	case why.Lacks:
		parts = append(parts, "the pod"+strings.TrimPrefix(a.Summary, a.Subject))
	case why.Fits, why.Free:
		parts = append(parts, fmt.Sprintf("its devices are free on %s now", nodes(len(a.Fits))))
		if _, silence, _ := strings.Cut(a.Summary, ", but "); a.Result == why.Free && len(a.Reasons) == 0 {
			parts = append(parts, silence)
		} else if len(a.Reasons) == 0 {
			parts = append(parts, "the scheduler has not tried again since, or has other reasons")
		}
	default:
		// The Event is on the pod already.
		text := strings.TrimPrefix(strings.TrimPrefix(a.Summary, a.Subject), ":")
		parts = append(parts, strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(text), "waits: "), "."))
	}
	for _, r := range a.Reasons[:min(len(a.Reasons), mostReasons)] {
		if len(r.Nodes) > 0 {
			text := r.Text
			if rest, held := strings.CutPrefix(text, why.CauseHeld); held && a.HeldGPUs > 0 {
				text = fmt.Sprintf("%s (%d of %d GPUs, whole or in part)%s", why.CauseHeld, a.HeldGPUs, a.GPUs, rest)
			}
			parts = append(parts, "on "+nodes(len(r.Nodes))+": "+text)
		} else {
			parts = append(parts, r.Text)
		}
	}
	if n := len(a.Reasons) - mostReasons; n > 0 {
		parts = append(parts, fmt.Sprintf("%d other reasons", n))
	}
	notes := a.Notes
	if a.Result != why.Fits && a.Result != why.Free { // Else such a fault can be the reason.
		notes = slices.DeleteFunc(slices.Clone(notes),
			func(n string) bool { return strings.HasPrefix(n, why.FaultNote) })
	}
	parts = append(parts, notes[:min(len(notes), mostNotes)]...)
	if len(a.Cures) > 0 {
		var cures []string
		lead := "this would help: "
		if len(a.Cures) > 1 {
			lead = "one of these would help: "
		}
		for _, c := range a.Cures[:min(len(a.Cures), mostCures)] {
			cures = append(cures, c.Text)
		}
		parts = append(parts, lead+strings.Join(cures, "; or "))
	}
	if a.Result == why.Lacks {
		parts = append(parts, a.Change)
	}
	parts = append(parts, aside...)
	for i, part := range parts {
		parts[i] = sentence(lastAttempt.ReplaceAllString(part, ""))
	}
	return strings.Join(parts, " ")
}

// sentence begins a text with a capital and ends it with a full stop.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	text = string(unicode.ToUpper(first)) + text[size:]
	if strings.HasSuffix(text, "?") || strings.HasSuffix(text, ".") {
		return text
	}
	return text + "."
}

func nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// message makes the text of an Event on a pod.
func message(text string, pod *corev1.Pod) string {
	return shortened(text, fmt.Sprintf(" `kubectl gpu why %s -n %s` shows more.", pod.Name, pod.Namespace))
}

// shortened begins a text with the prefix, and cuts it so that the tail fits. It replaces characters that a terminal
// would interpret, because selectors and Events are other users' texts.
func shortened(text, tail string) string {
	text = messagePrefix + strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, text)
	const ellipsis = "…"
	if room := maxMessageBytes - len(tail); len(text) > room {
		text = text[:max(0, room-len(ellipsis))]
		for !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}
		text += ellipsis
	}
	return text + tail
}

// lastAttempt is the age of a refusal. The Event has a time of its own, and stays as it is while the age grows.
var lastAttempt = regexp.MustCompile(` \(last attempt [^()]* ago\)`)

var ages = regexp.MustCompile(`\b[0-9]+ (s|min|h|d)\b`)

// sense is the part of a text that does not change by itself as time passes.
func sense(text string) string { return ages.ReplaceAllString(text, "") }

var numbers = regexp.MustCompile(`[0-9]+`)

// form is a text without its numbers.
func form(text string) string { return numbers.ReplaceAllString(text, "") }
