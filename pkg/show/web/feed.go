// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"gpu-dra-driver/pkg/show/view"
)

// maxGone bounds the lines about the past.
const maxGone = 10_000

// feed keeps the newest line of each subject, so that a slow reader skips what is out of date. It is safe for
// concurrent use.
type feed struct {
	mu      sync.Mutex
	version uint64
	lines   map[string]line
	gone    int
	// oldest is the version since which the lines about the past are complete.
	oldest uint64
	// more is closed at the next change.
	more chan struct{}
}

type line struct {
	version uint64
	text    []byte
	// gone means that the subject does not exist any more.
	gone bool
}

func newFeed() *feed { return &feed{lines: map[string]line{}, more: make(chan struct{})} }

// put stores messages by subject, and notifies readers if one differs from the last one of its subject.
func (f *feed) put(messages map[string]message) error {
	next := map[string]line{}
	for subject, m := range messages {
		text, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("encode %s: %w", subject, err)
		}
		next[subject] = line{text: text, gone: m.Gone != nil}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	differ := false
	for subject, l := range next {
		old, known := f.lines[subject]
		if known && bytes.Equal(old.text, l.text) || l.gone && !known {
			continue
		}
		f.gone += count(l.gone) - count(old.gone)
		l.version, differ = f.version+1, true
		f.lines[subject] = l
	}
	if !differ {
		return nil
	}
	f.version++
	if f.gone > maxGone {
		maps.DeleteFunc(f.lines, func(_ string, l line) bool { return l.gone })
		f.gone, f.oldest = 0, f.version
	}
	close(f.more)
	f.more = make(chan struct{})
	return nil
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// batch is a part of a feed.
type batch struct {
	lines [][]byte
	// reset means that the lines are all there are, because those about the past are lost.
	reset   bool
	version uint64
	// more is closed at the next change.
	more <-chan struct{}
}

// since returns the lines after a version, sorted by subject.
func (f *feed) since(version uint64) batch {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := batch{version: f.version, more: f.more}
	if version < f.oldest {
		version, out.reset = 0, true
	}
	var subjects []string
	for subject, l := range f.lines {
		if l.version > version && !(l.gone && version == 0) {
			subjects = append(subjects, subject)
		}
	}
	slices.Sort(subjects)
	for _, subject := range subjects {
		out.lines = append(out.lines, f.lines[subject].text)
	}
	return out
}

// message is a line of the feed. It has one of its fields.
type message struct {
	Status *status     `json:"status,omitempty"`
	Node   *node       `json:"node,omitempty"`
	Claim  *view.Claim `json:"claim,omitempty"`
	Gone   *gone       `json:"gone,omitempty"`
}

// status is about the page as a whole.
type status struct {
	// Title names the cluster, as the kubeconfig does.
	Title  string `json:"title"`
	Driver string `json:"driver"`
	// Reading names the resources that are not read yet.
	Reading []string `json:"reading,omitempty"`
	// Notes say in a sentence each what the page does not show, and why.
	Notes []string `json:"notes,omitempty"`
}

// node is a node as the page shows it.
type node struct {
	view.Node
	GPUs []gpu `json:"gpus"`
}

// gpu has the object of `kubectl gpu ls`, and the words of its table.
type gpu struct {
	view.GPU
	Summary    string  `json:"summary"`
	Condition  string  `json:"condition"`
	Fragmented float64 `json:"fragmented,omitempty"`
	// Free means that new claims can get the GPU as a whole.
	Free     bool          `json:"free,omitempty"`
	Remedies []view.Remedy `json:"remedies,omitempty"`
}

type gone struct {
	Node  string         `json:"node,omitempty"`
	Claim *view.ClaimRef `json:"claim,omitempty"`
}

func pageNode(in view.Node) *node {
	out := &node{Node: in, GPUs: []gpu{}}
	for _, g := range in.GPUs {
		one := gpu{
			GPU:        g,
			Summary:    g.Summary(),
			Condition:  g.Condition(),
			Fragmented: g.Fragmentation(),
			Free:       g.Available(),
		}
		if one.Condition != "ok" || g.Use == view.Unpublished {
			one.Remedies = g.Remedies()
		}
		out.GPUs = append(out.GPUs, one)
	}
	return out
}
