// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// FindingGroup is a finding with all subjects of which it is true.
type FindingGroup struct {
	Level    Level
	Subjects []string
	Message  string
}

// GroupFindings joins equal findings, those that need action most first. Otherwise their order stays.
func GroupFindings(all []Finding) (out []FindingGroup) {
	at := map[Finding]int{}
	for _, f := range all {
		key := Finding{Level: f.Level, Message: f.Message}
		i, known := at[key]
		if !known {
			i = len(out)
			at[key] = i
			out = append(out, FindingGroup{Level: f.Level, Message: f.Message})
		}
		out[i].Subjects = append(out[i].Subjects, f.Subject)
	}
	rank := func(l Level) int {
		if l == Warning || l == Note {
			return 1 // Before what was not checked or is ok, which weighs as much.
		}
		return 0
	}
	slices.SortStableFunc(out, func(a, b FindingGroup) int {
		return cmp.Or(b.Level.Weight()-a.Level.Weight(), rank(b.Level)-rank(a.Level))
	})
	return out
}

// maxNamed is the number of subjects whose names fit a line.
const maxNamed = 3

// Subject names the subjects: all, or the first of many and their number.
func (g FindingGroup) Subject() string {
	if len(g.Subjects) <= maxNamed+1 {
		return strings.Join(g.Subjects, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(g.Subjects[:maxNamed], ", "), len(g.Subjects)-maxNamed)
}

// Summary counts findings in a line.
func Summary(all []Finding) string {
	count := map[Level]int{}
	for _, f := range all {
		count[f.Level]++
	}
	var parts []string
	for _, l := range []struct {
		Level
		one, many string
	}{{Problem, "problem", "problems"}, {Warning, "warning", "warnings"},
		{Unchecked, "part not checked", "parts not checked"}, {Note, "note", "notes"}} {
		switch n := count[l.Level]; n {
		case 0:
		case 1:
			parts = append(parts, "1 "+l.one)
		default:
			parts = append(parts, fmt.Sprintf("%d %s", n, l.many))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprintf("all is well, in %d findings", count[Info])
	}
	return fmt.Sprintf("%s; %d findings are ok", strings.Join(parts, ", "), count[Info])
}
