// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package recordedtest reads the recordings of real machines in test/hardware/recorded, for tests that replay them.
//
// A test compares a recorded text with another text of the same machine where it can, not with a constant. Then it also
// checks recordings that are added later.
package recordedtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Recording is a machine with one model of GPU and one version of the driver.
type Recording struct {
	// Name is the board and the driver, such as "h200-580.159.04".
	Name string
	// Dir is the recording's directory.
	Dir string
}

// Each runs a test for each recording.
func Each(t *testing.T, check func(*testing.T, Recording)) {
	t.Helper()
	dir := "."
	for {
		if _, err := os.Stat(filepath.Join(dir, "test/hardware/recorded")); err == nil {
			break
		}
		if abs, err := filepath.Abs(dir); err != nil || abs == "/" {
			t.Fatalf("no test/hardware/recorded above the test's directory (%v)", err)
		}
		dir = filepath.Join(dir, "..")
	}
	all, err := filepath.Glob(filepath.Join(dir, "test/hardware/recorded/*/facts.json"))
	if err != nil || len(all) == 0 {
		t.Fatalf("no recording in test/hardware/recorded (%v)", err)
	}
	for _, path := range all {
		r := Recording{Name: filepath.Base(filepath.Dir(path)), Dir: filepath.Dir(path)}
		t.Run(r.Name, func(t *testing.T) { check(t, r) })
	}
}

// Has reports whether the recording has a file.
func (r Recording) Has(name string) bool {
	_, err := os.Stat(filepath.Join(r.Dir, name))
	return err == nil
}

// Text returns a file of the recording.
func (r Recording) Text(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Facts returns the facts of test/hardware by name.
func (r Recording) Facts(t testing.TB) map[string]any {
	t.Helper()
	var facts map[string]any
	if err := json.Unmarshal([]byte(r.Text(t, "facts.json")), &facts); err != nil {
		t.Fatalf("%s: facts.json: %v", r.Name, err)
	}
	return facts
}

// Fact returns a fact that is a text. The test fails without it.
func (r Recording) Fact(t testing.TB, name string) string {
	t.Helper()
	text, ok := r.Facts(t)[name].(string)
	if !ok {
		t.Fatalf("%s: facts.json has no text %q", r.Name, name)
	}
	return text
}

// SMI returns the first value of a key in the output of nvidia-smi -q, such as "Driver Version".
func (r Recording) SMI(t testing.TB, key string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^ *` + regexp.QuoteMeta(key) + ` +: (.*)$`).FindStringSubmatch(r.Text(t,
		"nvidia-smi-q.txt"))
	if m == nil {
		t.Fatalf("%s: nvidia-smi -q has no %q", r.Name, key)
	}
	return strings.TrimSpace(m[1])
}

// ProcRoot makes a /proc of the recorded files in a directory of the test. address is the GPU's PCI address in the
// kernel's format.
func (r Recording) ProcRoot(t testing.TB, address string) string {
	t.Helper()
	dir := t.TempDir()
	for to, from := range map[string]string{
		"devices":               "proc-devices.txt",
		"modules":               "proc-modules.txt",
		"driver/nvidia/version": "proc-driver-nvidia-version.txt",
		"driver/nvidia/params":  "proc-driver-nvidia-params.txt",
		"driver/nvidia/gpus/" + address + "/information": "proc-driver-nvidia-gpu-information.txt",
		"driver/nvidia/capabilities/mig/config":          "proc-driver-nvidia-capabilities-mig-config.txt",
		"driver/nvidia/capabilities/mig/monitor":         "proc-driver-nvidia-capabilities-mig-monitor.txt",
	} {
		path := filepath.Join(dir, to)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(r.Text(t, from)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Node is a device node of the recorded /dev.
type Node struct {
	Name         string
	Mode         os.FileMode
	Major, Minor int64
}

var nodeForm = regexp.MustCompile(
	`(?m)^c([r-][w-]-)([r-][w-]-)([r-][w-]-) +\d+ root +root +(\d+), +(\d+) .* (nvidia[^ \n]*)$`)

// Nodes returns the driver's device nodes by name.
func (r Recording) Nodes(t testing.TB) map[string]Node {
	t.Helper()
	nodes := map[string]Node{}
	for _, m := range nodeForm.FindAllStringSubmatch(r.Text(t, "ls-dev.txt"), -1) {
		n := Node{Name: m[6]}
		for i, bit := range strings.Join(m[1:4], "") {
			if bit != '-' {
				n.Mode |= 1 << (8 - i)
			}
		}
		if err := json.Unmarshal([]byte("["+m[4]+","+m[5]+"]"), &[]any{&n.Major, &n.Minor}); err != nil {
			t.Fatal(err)
		}
		nodes[n.Name] = n
	}
	if len(nodes) == 0 {
		t.Fatalf("%s: ls-dev.txt has no device node", r.Name)
	}
	return nodes
}
