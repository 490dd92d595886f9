// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// Remedy says why new claims cannot get a GPU, and how that ends. Texts have no period at their end.
type Remedy struct {
	Cause string `json:"cause"`
	Text  string `json:"text"`
	// Commands are the commands of the text, with the names of the GPU and its node.
	Commands []string `json:"commands,omitempty"`
}

// The words of a cordon, of rules and of an incomplete pool.
const (
	slicesMissing = "slices missing"
	cordonCause   = "cordoned by an administrator: no new claim gets it"
	deleteRule    = "kubectl delete devicetaintrule "
)

// Remedies returns a remedy for each part of the GPU's Condition, in its order, and for a GPU that no slice has.
func (g GPU) Remedies() (out []Remedy) {
	if g.Health != "" {
		out = append(out, g.fault())
	}
	for _, t := range g.Taints {
		switch t.Key {
		case wire.CordonTaint:
			command := "kubectl gpu uncordon " + g.Node + "/" + g.Name
			out = append(out, Remedy{cordonCause, "when the work on it is done, end the cordon", []string{command}})
		case wire.ReservedTaint:
			out = append(out, Remedy{
				Cause: "reserved: a preemption frees it for a pod",
				Text:  "nothing is to be done; the reservation ends when the pod has its devices",
			})
		}
	}
	for _, name := range g.Rules {
		out = append(out, Remedy{"the DeviceTaintRule " + name + " taints it: claims without a toleration do " +
			"not get it", "delete the rule if it is not needed",
			[]string{deleteRule + name}})
	}
	if g.Incomplete {
		out = append(out, Remedy{"slices of its node are missing, as during an update: no claim gets a device until " +
			"all are written",
			"if it lasts, see the node's plugin", []string{"kubectl gpu doctor " + g.Node}})
	}
	switch g.Closed {
	case "node cordoned":
		out = append(out, Remedy{"its node is cordoned: new pods do not run there", "end the node's cordon when " +
			"the work on it is done", []string{"kubectl uncordon " + g.Node}})
	case "node not ready":
		out = append(out, Remedy{"its node is not ready: new pods do not run there", "see the node's conditions",
			[]string{"kubectl describe node " + g.Node}})
	}
	switch {
	case g.Use == Unpublished:
		out = append(out, Remedy{"a claim has the GPU, and no slice publishes it", "see the node's plugin",
			[]string{"kubectl gpu doctor " + g.Node}})
	case g.Condition() == "unknown":
		out = append(out, Remedy{"the GPU is in no slice itself, so its health is unknown", "see the node's plugin",
			[]string{"kubectl gpu doctor " + g.Node}})
	}
	return out
}

// fault is the remedy for an unhealthy GPU.
func (g GPU) fault() Remedy {
	state, known := resourceslices.Describe(g.Health)
	if !known {
		return Remedy{Cause: "unhealthy: " + g.Health, Text: "see docs/reference/health.md"}
	}
	return Remedy{"unhealthy: " + g.Health + ": " + state.Cause, state.RemedyFor(g.PCIAddress),
		state.CommandsFor(g.Node, g.Name, g.PCIAddress)}
}
