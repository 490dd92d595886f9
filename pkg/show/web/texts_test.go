// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTexts_NothingFound_NoClaimWaitsOnlyIfAllWasRead runs the page's texts by Node.js. test/web has the page in a browser.
func TestTexts_NothingFound_NoClaimWaitsOnlyIfAllWasRead(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("Node.js is not installed: hack/ci-packages.sh node:nodejs does that")
		}
		t.Skip("Node.js is not installed; make test-web checks the same in a browser")
	}
	module := filepath.Join(t.TempDir(), "format.mjs")
	text, err := os.ReadFile("assets/format.js")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(module, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ call, want string }{
		"search":        {"noneWaiting({waiting: 41, connected: true})", "The search matches no waiting claim; 41 claims wait for devices."},
		"one":           {"noneWaiting({waiting: 1, connected: true})", "The search matches no waiting claim; 1 claim waits for devices."},
		"no connection": {"noneWaiting({waiting: 0, connected: false})", "Waiting claims are unknown: the page has no connection."},
		"reading": {"noneWaiting({waiting: 0, connected: true, reading: ['ResourceClaims']})",
			"Waiting claims are unknown until ResourceClaims are read."},
		"no right": {"noneWaiting({waiting: 0, connected: true, notes: ['You may not list ResourceClaims.']})",
			"No claim that the page could read waits for devices: see the notes."},
		"none":             {"noneWaiting({waiting: 0, connected: true, reading: [], notes: []})", "No claim waits for devices."},
		"GPU, no right":    {"noHolder({connected: true, notes: ['You may not list ResourceClaims.']})", "No claim that the page has read has it."},
		"GPU":              {"noHolder({connected: true})", "No claim has it."},
		"GPU, being read":  {"noHolder({connected: true, reading: ['ResourceClaims']})", "No claim that the page has read has it."},
		"GPU, unconnected": {"noHolder({connected: false})", "No claim that the page has read has it."},
	} {
		t.Run(name, func(t *testing.T) {
			script := "import { noHolder, noneWaiting } from '" + module + "'; process.stdout.write(" + c.call + ");"
			out, err := exec.CommandContext(t.Context(), node, "--input-type=module", "-e", script).CombinedOutput()
			if err != nil || string(out) != c.want {
				t.Errorf("%v: %q, want %q", err, out, c.want)
			}
		})
	}
}
