// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// change is one line of a changelog, with its kind in the words of Artifact Hub: added, changed, deprecated, removed, fixed,
// security.
type change struct {
	Kind        string `json:"kind"`
	Description string `json:"description"`
}

// section returns the changes of a version from a changelog in the form of Keep a Changelog, without the heading. A prerelease
// such as 1.2.3-rc.1 that has no heading of its own has the changes under Unreleased.
func section(changelog, version string) (string, error) {
	headings := []string{version}
	if strings.Contains(version, "-") {
		headings = append(headings, "Unreleased")
	}
	for _, heading := range headings {
		var text strings.Builder
		inside := false
		for line := range strings.Lines(changelog) {
			if rest, ok := strings.CutPrefix(line, "## "); ok {
				title := strings.Fields(rest)
				inside = len(title) > 0 && title[0] == heading
				continue
			}
			if inside {
				text.WriteString(line)
			}
		}
		if trimmed := strings.TrimSpace(text.String()); trimmed != "" {
			return trimmed + "\n", nil
		}
	}
	return "", fmt.Errorf("CHANGELOG.md has no changes under '## %s': give that heading to those under '## Unreleased'", version)
}

// changes returns the list items of a section, each as one line.
func changes(section string) []change {
	var list []change
	kind, open := "changed", false
	for line := range strings.Lines(section) {
		text := strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(text, "### "); ok {
			kind, open = strings.ToLower(title), false
		} else if item, ok := strings.CutPrefix(line, "- "); ok {
			list, open = append(list, change{Kind: kind, Description: strings.TrimSpace(item)}), true
		} else if text == "" || !strings.HasPrefix(line, "  ") {
			open = false
		} else if open {
			list[len(list)-1].Description += " " + text
		}
	}
	return list
}
