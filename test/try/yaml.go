// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// short is a value's JSON as YAML, in the order of its fields. Lists and objects that fit into a line are not split.
func short(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // Plans and CDI specs come from JSON.
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		panic(err) // JSON is YAML.
	}
	root := document.Content[0]
	plain(root)
	fit(root, 2, width)
	return indented(root, "  ")
}

// plain removes the quotes that JSON needs and YAML does not, and shortens long texts.
func plain(n *yaml.Node) {
	const longest, kept = 100, 50
	if n.Kind == yaml.ScalarNode {
		n.Style = 0
		if len(n.Value) > longest {
			n.Value = fmt.Sprintf("%s… (%d characters)", n.Value[:kept], len(n.Value))
		}
	}
	for _, child := range n.Content {
		plain(child)
	}
}

// fit chooses blocks for the lists and objects that are too long for the line on which used characters stand already. The
// lines of a block have an indent.
func fit(n *yaml.Node, indent, used int) {
	if n.Kind == yaml.ScalarNode || used+len(indented(n, "")) <= width {
		return
	}
	n.Style = 0
	for i, child := range n.Content {
		switch {
		case n.Kind == yaml.SequenceNode:
			fit(child, indent+2, indent+2)
		case i%2 == 1:
			fit(child, indent+2, indent+len(n.Content[i-1].Value)+2)
		}
	}
}

func indented(n *yaml.Node, indent string) string {
	var b strings.Builder
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(n); err != nil {
		panic(err) // It was decoded from YAML.
	}
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		out.WriteString(indent + line)
	}
	return out.String()
}
