// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import "gpu-dra-driver/pkg/view"

// message is a line of the feed. It has one of its fields.
type message struct {
	Status *status     `json:"status,omitempty"`
	Node   *node       `json:"node,omitempty"`
	Claim  *view.Claim `json:"claim,omitempty"`
	Gone   *gone       `json:"gone,omitempty"`
	// Reset precedes all that exists. The page forgets the rest.
	Reset bool `json:"reset,omitempty"`
	// Shown ends a batch: the page draws it.
	Shown bool `json:"shown,omitempty"`
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
}

type gone struct {
	Node  string         `json:"node,omitempty"`
	Claim *view.ClaimRef `json:"claim,omitempty"`
}

func pageNode(in view.Node) *node {
	out := &node{Node: in, GPUs: []gpu{}}
	for _, g := range in.GPUs {
		out.GPUs = append(out.GPUs, gpu{g, g.Summary(), g.Condition(), g.Fragmentation()})
	}
	return out
}
