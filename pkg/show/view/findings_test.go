// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"fmt"
	"strings"
	"testing"

	"gpu-dra-driver/pkg/show/view"
)

// TestGroupFindings_EqualFindings_AreOneLine has findings of all levels, in an order by subject.
func TestGroupFindings_EqualFindings_AreOneLine(t *testing.T) {
	var all []view.Finding
	for i := range 57 {
		all = append(all, view.Finding{Level: view.Info, Subject: fmt.Sprintf("n%d", i), Message: "fine"},
			view.Finding{Level: view.Warning, Subject: fmt.Sprintf("n%d", i), Message: "slow"})
	}
	all = append(all, view.Finding{Level: view.Unchecked, Subject: "Nodes", Message: "no right"}, view.Finding{Level: view.Problem, Subject: "n9", Message: "lost"},
		view.Finding{Level: view.Problem, Subject: "n8", Message: "slow"}, view.Finding{Level: view.Problem, Subject: "n7", Message: "lost"})
	var got []string
	for _, g := range view.GroupFindings(all) {
		got = append(got, fmt.Sprintf("%s|%s|%s", g.Level, g.Subject(), g.Message))
	}
	want := "problem|n9, n7|lost problem|n8|slow warning|n0, n1, n2 and 54 more|slow not checked|Nodes|no right ok|n0, n1, n2 and 54 more|fine"
	if strings.Join(got, " ") != want {
		t.Errorf("%q", got)
	}
	if got := view.Summary(all); got != "3 problems, 57 warnings, 1 part not checked; 57 findings are ok" {
		t.Error(got)
	}
	if got := view.Summary(all[:1]); got != "all is well, in 1 findings" {
		t.Error(got)
	}
}
