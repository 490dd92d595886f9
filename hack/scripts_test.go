// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package hack_test runs the scripts with other programs in place of those that they call.
package hack_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// arguments are those after the version of Kubernetes that let a script begin with its cluster.
var arguments = map[string][]string{"test-ecosystem.sh": {"gangs"}}

// cluster is a program in place of onenode and kindhost: it writes what it does, and takes a while to clean up.
const cluster = `case $1 in run) ;; which) echo /k8s/bin/kubelet; exit;; *) exit;; esac
trap 'sleep 0.7; echo cleaned >"$SEEN"; exit 1' TERM
echo is up; echo started >"$SEEN"; while :; do sleep 0.1; done`

// tree makes a source tree with the scripts, and with other programs for all that they call.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"docs/compatibility.md": "", "test/go.mod": ""}
	scripts, err := filepath.Glob("*.sh")
	if err != nil {
		t.Fatal(err)
	}
	var sums []string
	for _, name := range scripts {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files["hack/"+name] = string(text)
		sums = append(sums, regexp.MustCompile(`"Sum": "h1:[^"]*"`).FindAllString(string(text), -1)...)
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	files["Makefile"] = string(makefile)
	for _, name := range []string{"demo", "bench", "bench-controller", "bench-kubectl"} {
		files["bin/"+name] = "true"
	}
	files["bin/onenode"], files["bin/kindhost"] = cluster, cluster
	files["hack/tool.sh"] = `[ "$1" != --path ] || echo /bin/true`
	files["hack/ci-packages.sh"] = "true"
	// A module has the sum that the script wants.
	files["path/go"] = `case "$*" in *"mod download"*) printf '\t"Dir": "/m",\n'; echo '` + strings.Join(sums, "\n") + `';; esac`
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(text, "#!") {
			text = "#!/bin/bash\n" + text + "\n"
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestScripts_Ended_WaitForTheirClusters ends each script that runs a cluster as make does, which passes a signal on that the script
// has too.
func TestScripts_Ended_WaitForTheirClusters(t *testing.T) {
	source := tree(t)
	scripts, err := filepath.Glob("*.sh")
	if err != nil {
		t.Fatal(err)
	}
	runs, tested := regexp.MustCompile(`bin/(onenode|kindhost) run`), 0
	for _, name := range scripts {
		if text, err := os.ReadFile(name); err != nil || !runs.Match(text) {
			continue
		}
		tested++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended(t, source, name)
		})
	}
	if tested < 8 {
		t.Errorf("%d scripts run a cluster", tested)
	}
}

func ended(t *testing.T, source, name string) {
	t.Helper()
	seen, temporary := filepath.Join(t.TempDir(), "seen"), t.TempDir()
	cmd := exec.Command(filepath.Join(source, "hack", name), append([]string{"v1.37.0"}, arguments[name]...)...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(source, "path")+":"+os.Getenv("PATH"), "SEEN="+seen, "TMPDIR="+temporary, "PHASES=")
	said := filepath.Join(t.TempDir(), "said")
	out, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(3 * time.Minute)
	// Once its output is here, the programs that it passes have begun too. Only test-versions.sh keeps it.
	for began := false; !began; time.Sleep(10 * time.Millisecond) {
		state, _ := os.ReadFile(seen)
		text, _ := os.ReadFile(said)
		began = string(state) == "started\n" && (strings.Contains(string(text), "is up\n") || name == "test-versions.sh")
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			t.Fatalf("the cluster wrote %q, the script %s", state, text)
		}
	}
	for range 300 {
		_ = cmd.Process.Signal(syscall.SIGTERM) // It can end before all of them.
		time.Sleep(100 * time.Microsecond)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("an ended script succeeds")
	}
	if text, err := os.ReadFile(seen); err != nil || string(text) != "cleaned\n" {
		t.Errorf("after the script: %q, %v", text, err)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) != 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}
