// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// foreign are parts of messages that other programs print, with the program.
var foreign = map[string]string{
	"calling webhook":             "kube-apiserver",
	"no endpoints available":      "kube-apiserver",
	"service":                     "kube-apiserver",
	"not found":                   "kube-apiserver",
	"context deadline exceeded":   "kube-apiserver",
	"admission webhook":           "kube-apiserver",
	"denied the request":          "kube-apiserver",
	"exceeded quota":              "kube-apiserver",
	"is invalid":                  "kubectl",
	"Warning":                     "kubectl",
	"FailedResourceClaimCreation": "kube-controller-manager",
	"Insufficient":                "kube-scheduler",
	"is not registered":           "kubelet",
	"DRA driver":                  "kubelet",
	"unresolvable CDI devices":    "containerd",
	"GPU is lost":                 "NVML",
	"helm uninstall":              "a command",
}

// TestDocs_TroubleshootingQuotes_AreOfTheSources looks for the messages that the page quotes: each part between the holes must
// be in a text of the sources, or be another program's. Numbers and names of examples are holes too.
func TestDocs_TroubleshootingQuotes_AreOfTheSources(t *testing.T) {
	var all strings.Builder
	for _, dir := range []string{"api", "cmd", "internal", "pkg", "deployments/helm/gpu-dra-driver/templates"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			all.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	sources := all.String()
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| ([^|]*`[^|]*) \\|")
	quote := regexp.MustCompile("`([^`]+)`")
	// An error is "ATTEMPT failed for DEVICE: CAUSE".
	hole := regexp.MustCompile(`…|"[^"]*"|nvidia\.com/gpu|gpu\.nvidia\.com|, |: | failed( for gpu-)?|\brequest gpu\b|\b[0-9]+\b`)
	count := 0
	for _, line := range row.FindAllStringSubmatch(string(page), -1) {
		for _, q := range quote.FindAllStringSubmatch(line[1], -1) {
			for _, part := range hole.Split(q[1], -1) {
				part = strings.TrimSpace(part)
				if len(part) < 4 || foreign[part] != "" {
					continue
				}
				count++
				if !strings.Contains(strings.ToLower(sources), strings.ToLower(part)) {
					t.Errorf("docs/troubleshooting.md quotes %q: no source has %q", q[1], part)
				}
			}
		}
	}
	if count < 20 {
		t.Errorf("only %d parts of messages were found", count)
	}
}
