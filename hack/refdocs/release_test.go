// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRelease_Unfit_NotPublished runs the script of make release where the check fails, with programs that print their
// arguments.
func TestRelease_Unfit_NotPublished(t *testing.T) {
	dir := t.TempDir()
	script, err := os.ReadFile("../release.sh")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"hack/release.sh": string(script), "hack/check-release.sh": "#!/bin/sh\nexit 1\n"}
	for _, program := range []string{"make", "go"} {
		files["bin/"+program] = "#!/bin/sh\necho " + program + " \"$@\" >>" + filepath.Join(dir, "log") + "\n"
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		env  []string
		goes bool
		args string
	}{
		{nil, true, ""},
		{[]string{"REGISTRY=localhost:5000/team", "HOME_URL=h", "SOURCE_URL=s", "BUILDER=b", "KEY=k"}, true,
			" --registry localhost:5000/team --home h --source s --builder b --key " + dir + "/k"},
		{[]string{"REGISTRY=registry.example.com/team"}, true, " --registry registry.example.com/team"},
		{[]string{"REGISTRY=registry.example.com/team", "BASE_URL=https://example.com"}, false, ""},
		{[]string{"BASE_URL=https://example.com"}, false, ""},
	} {
		_ = os.Remove(filepath.Join(dir, "log"))
		cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "hack/release.sh"), "1.2.3-rc.1", dir+"/dist")
		cmd.Env = append([]string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH")}, c.env...)
		out, err := cmd.CombinedOutput()
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		want := ""
		if c.goes {
			want = "go -C deployments run ./release --version 1.2.3-rc.1 --notes\n" +
				"make --no-print-directory images-all dist VERSION=1.2.3-rc.1 DIST=" + dir + "/dist\n" +
				"go -C deployments run ./release --version 1.2.3-rc.1 --dist " + dir + "/dist" + c.args + "\n"
		}
		if (err == nil) != c.goes || string(log) != want {
			t.Errorf("%v: %v, ran\n%swant\n%s%s", c.env, err, log, want, out)
		}
	}
}

// TestPublish_Tag_ReleasesItsVersion runs the script of the workflow with programs that print their arguments.
func TestPublish_Tag_ReleasesItsVersion(t *testing.T) {
	dir := t.TempDir()
	script, err := os.ReadFile("../publish.sh")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"hack/publish.sh": string(script)}
	for _, program := range []string{"hack/check-release.sh", "hack/tool.sh", "bin/make", "bin/gh"} {
		files[program] = "#!/bin/sh\necho " + filepath.Base(program) + " \"$@\" >>" + filepath.Join(dir, "log") + "\n"
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run := func(key, tag string) (string, error) {
		_ = os.Remove(filepath.Join(dir, "log"))
		cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "hack/publish.sh"), tag)
		cmd.Env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "HOME=/home", "RUNNER_TEMP=" + dir, "RELEASE_KEY=" + key,
			"GH_TOKEN=t", "GITHUB_REPOSITORY=Team/driver", "GITHUB_SERVER_URL=https://git.example.com", "GITHUB_ACTOR=someone"}
		out, err := cmd.CombinedOutput()
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		return string(log) + string(out), err
	}
	log, err := run("key", "v1.2.3-rc.1")
	want := "check-release.sh 1.2.3-rc.1\n" +
		"tool.sh helm registry login ghcr.io --registry-config /home/.docker/config.json --username someone --password-stdin\n" +
		"make release VERSION=1.2.3-rc.1 KEY=" + dir + "/release.key REGISTRY=ghcr.io/team/driver " +
		"BASE_URL=https://git.example.com/Team/driver/releases/download/v1.2.3-rc.1 HOME_URL=https://git.example.com/Team/driver " +
		"SOURCE_URL=https://git.example.com/Team/driver " +
		"BUILDER=https://git.example.com/Team/driver/.github/workflows/release.yml@refs/tags/v1.2.3-rc.1\n" +
		"gh release create v1.2.3-rc.1 --prerelease --title v1.2.3-rc.1 --notes-file dist/release-1.2.3-rc.1/notes.md dist/release-1.2.3-rc.1/*\n"
	if err != nil || log != want {
		t.Errorf("%v, ran\n%swant\n%s", err, log, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "release.key")); !os.IsNotExist(err) {
		t.Errorf("the key is still there: %v", err)
	}
	if log, err := run("key", "v1.2.3"); err != nil || strings.Contains(log, "--prerelease") {
		t.Errorf("%v, ran\n%s", err, log)
	}
	if log, err := run("", "v1.2.3"); err == nil || !strings.Contains(log, "set the secret RELEASE_KEY") {
		t.Errorf("without a key: %v, ran\n%s", err, log)
	}
}

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
	for _, name := range []string{"SECURITY.md", "hack/owner.yaml", "OWNERS"} {
		write(name, "PLACEHOLDER\n")
		add := exec.CommandContext(t.Context(), "git", "-C", dir, "add", "-A")
		if out, err := add.CombinedOutput(); err != nil {
			t.Fatalf("git add: %v: %s", err, out)
		}
		if out, err := run(dir); err == nil || !strings.Contains(out, name+":1") || !strings.Contains(out, "fill in hack/owner.yaml") {
			t.Errorf("with a placeholder in %s: %v: %s", name, err, out)
		}
		write(name, "\n")
	}
	write("CHANGELOG.md", "## Unreleased\n")
	if out, err := run(dir); err == nil || !strings.Contains(out, "CHANGELOG.md has no heading '## 1.2.3'") {
		t.Errorf("without an entry of the version: %v: %s", err, out)
	}
	version = "1.2.3-rc.1"
	if out, err := run(dir); err != nil {
		t.Errorf("a prerelease without an entry of its own: %v: %s", err, out)
	}
}

// TestRelease_OwnersFile_FillsEveryPage fills in a copy of hack/owner.yaml. No file has a placeholder then, and the check passes.
func TestRelease_OwnersFile_FillsEveryPage(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"MAINTAINERS.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "hack/owner.yaml", "hack/check-release.sh"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "hack/owner.yaml" {
			filled := strings.NewReplacer("answerDays: PLACEHOLDER", "answerDays: 5", "security: PLACEHOLDER", "security: security@example.com",
				"example.com/PLACEHOLDER", "git.example.com/team/driver", "account: PLACEHOLDER", "account: aperson", "PLACEHOLDER", "A. Person")
			text = []byte(filled.Replace(string(text)))
		}
		write(name, string(text))
	}
	files, err := ownerPages(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"MAINTAINERS.md":                    "| A. Person | aperson | all |\n",
		"SECURITY.md":                       "in private to security@example.com. You get an answer within 5 days.\n",
		"CODE_OF_CONDUCT.md":                "in private to A. Person.\n",
		"OWNERS":                            "approvers:\n- aperson\nreviewers:\n- aperson\n",
		"SECURITY_CONTACTS":                 "\naperson\n",
		".github/ISSUE_TEMPLATE/config.yml": "url: https://git.example.com/team/driver/security/policy\n",
	} {
		if text := files[name]; !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", name, want, text)
		}
		write(name, files[name])
	}
	write("CHANGELOG.md", "## 1.2.3\n")
	check := exec.CommandContext(t.Context(), "bash", "-c", "git init -q && git add -A && bash hack/check-release.sh 1.2.3")
	check.Dir = root
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("with the owner's file filled in: %v: %s", err, out)
	}
}
