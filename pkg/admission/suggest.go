// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// nearest is the candidate that is most like the text, empty where none is: one that it begins or is begun by, else the one
// that differs in the fewest letters. Of equals it is the first.
func nearest(text string, candidates []string) string {
	best, least := "", len(text)/2+1
	lower := strings.ToLower(text)
	for _, c := range candidates {
		l := strings.ToLower(c)
		d := distance(lower, l)
		if len(text) >= 3 && (strings.HasPrefix(l, lower) || strings.HasPrefix(lower, l)) {
			d = 0
		}
		if d < least {
			best, least = c, d
		}
	}
	return best
}

// distance is the number of bytes to insert, delete or replace between two texts (Levenshtein's).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j]+1, row[j+1]+1, replaced)
		}
	}
	return row[len(b)]
}

// few names the first of many.
func few(values sets.Set[string]) []string {
	out := sets.List(values)
	const limit = 6
	if len(out) > limit {
		out = append(out[:limit:limit], "…")
	}
	return out
}
