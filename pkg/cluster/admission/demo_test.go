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

// TestReview_DeniedObject_TroubleshootingQuotesKubectl builds the lines that kubectl prints of an invalid object: its causes.
func TestReview_DeniedObject_TroubleshootingQuotesKubectl(t *testing.T) {
	page, err := os.ReadFile("../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	v := newView(t, patient, "hgx-h100")
	r := Review(t.Context(), v, asked(t, with(of("gpu.nvidia.com", ""), "kind: GpuConfig, sharring: {}")), Options{Binding: true})
	if r.Allowed {
		t.Fatal("the object is allowed")
	}
	first := r.Result.Details.Causes[0]
	if text := "is invalid: * " + first.Field + ": " + first.Message; !strings.Contains(string(page), text) {
		t.Errorf("docs/troubleshooting.md does not quote %q", text)
	}
}
