// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRelease_Placeholders_Refused runs the check in a repository of its own, then on the tree.
func TestRelease_Placeholders_Refused(t *testing.T) {
	dir := t.TempDir()
	script, err := os.ReadFile("../check-release.sh")
	if err != nil {
		t.Fatal(err)
	}
	version := "1.2.3"
	run := func(dir string) (string, error) {
		check := filepath.Join(dir, "hack/check-release.sh")
		out, err := exec.CommandContext(t.Context(), "bash", check, version).CombinedOutput()
		return string(out), err
	}
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("hack/check-release.sh", string(script))
	write("CHANGELOG.md", "## 1.2.3\n")
	write("SECURITY.md", "Write to security@example.com.\n")
	repository := "cd " + dir + " && git init -q && git add -A"
	if out, err := exec.CommandContext(t.Context(), "bash", "-c", repository).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", repository, err, out)
	}
	if out, err := run(dir); err != nil {
		t.Errorf("complete pages: %v: %s", err, out)
	}
	write("SECURITY.md", "Write to PLACEHOLDER: address.\n")
	if out, err := run(dir); err == nil || !strings.Contains(out, "SECURITY.md:1") || !strings.Contains(out, "fill in") {
		t.Errorf("with a placeholder: %v: %s", err, out)
	}
	write("SECURITY.md", "\n")
	write("CHANGELOG.md", "## Unreleased\n")
	if out, err := run(dir); err == nil || !strings.Contains(out, "CHANGELOG.md has no heading '## 1.2.3'") {
		t.Errorf("without an entry of the version: %v: %s", err, out)
	}
	version = "1.2.3-rc.1"
	if out, err := run(dir); err != nil {
		t.Errorf("a prerelease without an entry of its own: %v: %s", err, out)
	}
	security, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	out, err := run("../..")
	if strings.Contains(string(security), "PLACEHOLDER") && (err == nil || !strings.Contains(out, "SECURITY.md:3")) {
		t.Errorf("SECURITY.md has a placeholder, and the check says: %v: %s", err, out)
	}
}
