// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"os"
	"strings"
	"testing"
)

// TestReview_Demos_AnswerAsDocumented reviews what demo/reviews shows; the end-to-end tests have kubectl write it.
func TestReview_Demos_AnswerAsDocumented(t *testing.T) {
	v := newView(t, patient, "hgx-h100")
	for _, what := range []string{"denied", "warned"} {
		data, err := os.ReadFile("../../../demo/reviews/" + what + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for i, object := range strings.Split(string(data), "\n---\n") {
			lines := strings.Split(object, "\n")
			if i == 0 {
				lines = lines[1:] // The head of the file.
			}
			want := strings.TrimPrefix(lines[0], "# ")
			r := Review(t.Context(), v, asked(t, object), Options{Binding: true})
			said := strings.Join(r.Warnings, "\n")
			if !r.Allowed {
				said = r.Result.Message
			}
			if r.Allowed != (what == "warned") || !strings.Contains(said, want) {
				t.Errorf("%s: allowed %t, %q, want %q", lines[4], r.Allowed, said, want)
			}
		}
	}
}
