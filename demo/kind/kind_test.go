// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package kind_test checks the kind scripts without Docker and kind: their syntax, their commands, and that the files
// of those exist. `make test-kind` runs them.
package kind_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden")

// settings are the variables of the scripts' callers.
var settings = []string{"CLUSTER", "VERSION", "KIND_NODE_IMAGE", "GO_IMAGE", "DRIVER_ROOT"}

// script runs a script in a source tree with other variables.
func script(t *testing.T, tree, name string, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(filepath.Join(tree, "demo/kind", name), args...)
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !slices.Contains(settings, name) {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(append(cmd.Env, "PATH=/usr/bin:/bin"), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// tree makes a source tree with the kind scripts, and with files of the given names.
func tree(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range append([]string{
		"demo/kind/kind.sh", "demo/kind/node.sh", "demo/kind/cluster.yaml", "deployments/helm/gpu-dra-driver/Chart.yaml",
	}, files...) {
		// A built file need not be here.
		data, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil && !slices.Contains(files, name) {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// made are the files of `make images`.
var made = []string{
	"dist/dra-kubelet-plugin-0.1.0.tar", "dist/mps-supervisor-0.1.0.tar", "dist/dra-controller-0.1.0.tar", "dist/probe-0.1.0.tar",
	"dist/gpu-simulator-0.1.0.tar",
}

func TestKind_Scripts_HaveNoSyntaxError(t *testing.T) {
	for _, name := range []string{"kind.sh", "node.sh"} {
		if out, err := exec.Command("bash", "-n", name).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestKind_DryRun_PrintsGolden(t *testing.T) {
	plain, images := tree(t), tree(t, made...)
	var got strings.Builder
	for _, run := range []struct {
		tree, heading string
		env, args     []string
	}{
		{plain, "", nil, []string{"up"}},
		{plain, "after `make images`", nil, []string{"up"}},
		{plain, "", []string{"CLUSTER=other", "KIND_NODE_IMAGE=kindest/node:v1.37.1", "GO_IMAGE=golang@sha256:1", "DRIVER_ROOT=/sim"}, []string{"up"}},
		{plain, "", nil, []string{"run"}},
		{plain, "", nil, []string{"run", "one-gpu", "pack"}},
		{plain, "", nil, []string{"down"}},
	} {
		if run.heading != "" {
			run.tree = images
		}
		out, err := script(t, run.tree, "kind.sh", run.env, append([]string{"--dry-run"}, run.args...)...)
		if err != nil {
			t.Fatalf("%s: %v\n%s", run.args, err, out)
		}
		got.WriteString(strings.Join(append(append([]string{"$"}, run.env...), "kind.sh", "--dry-run", strings.Join(run.args, " "), run.heading), " ") + "\n" + out)
	}
	if *update {
		if err := os.WriteFile("testdata/dry-run.txt", []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/dry-run.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("go test ./demo/kind -update writes the golden (-golden +printed):\n%s", diff)
	}
}

// TestKind_Images_AreThoseOfTheCatalog checks the images that the script looks for: a pod without its image would stay
// pending.
func TestKind_Images_AreThoseOfTheCatalog(t *testing.T) {
	var names [][][]byte
	for _, file := range []string{"catalog.go", "simulator.go"} {
		text, err := os.ReadFile("../../deployments/images/" + file)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, regexp.MustCompile(`\tname: +"(.*)"`).FindAllSubmatch(text, -1)...)
	}
	if len(names) != 5 {
		t.Errorf("the catalog has %d images", len(names))
	}
	for _, name := range names {
		if archive := "dist/" + string(name[1]) + "-0.1.0.tar"; !slices.Contains(made, archive) {
			t.Errorf("%s is not looked for", archive)
		}
	}
	// Each of them is needed.
	for i := range made {
		some := slices.Delete(slices.Clone(made), i, i+1)
		if out, err := script(t, tree(t, some...), "kind.sh", nil, "--dry-run", "up"); err != nil || !strings.Contains(out, "docker build ") {
			t.Errorf("without %s: %v\n%s", made[i], err, out)
		}
	}
}

// TestKind_NamedFiles_Exist checks the files after -f and the programs of this tree.
func TestKind_NamedFiles_Exist(t *testing.T) {
	out, err := script(t, tree(t), "kind.sh", nil, "--dry-run", "up")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(out)
	files := 0
	for i, w := range words {
		file := strings.TrimPrefix(w, "ONENODE=")
		if w == "-f" {
			file = words[i+1]
		} else if file == w && !strings.HasPrefix(w, "./cmd/") {
			continue
		}
		files++
		if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
			t.Error(err)
		}
	}
	if files < 3 {
		t.Errorf("only %d files are named:\n%s", files, out)
	}
}

// TestKind_Kubelet_AcceptsCgroupV1 reads the patch as kubeadm does.
func TestKind_Kubelet_AcceptsCgroupV1(t *testing.T) {
	data, err := os.ReadFile("cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cluster struct {
		KubeadmConfigPatches []string `json:"kubeadmConfigPatches"`
	}
	if err := yaml.Unmarshal(data, &cluster); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, text := range cluster.KubeadmConfigPatches {
		var patch struct {
			Kind         string `json:"kind"`
			FailCgroupV1 *bool  `json:"failCgroupV1"`
		}
		if err := yaml.UnmarshalStrict([]byte(text), &patch); err != nil {
			t.Fatal(err)
		}
		found = found || patch.Kind == "KubeletConfiguration" && patch.FailCgroupV1 != nil && !*patch.FailCgroupV1
	}
	if !found {
		t.Errorf("from 1.35 on the kubelet fails on cgroup v1:\n%s", data)
	}
}

// fake is a directory of programs, each of which runs a text of shell.
func fake(t *testing.T, programs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/bash\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestKind_Kubectl_WithinOneMinorVersion(t *testing.T) {
	const versions = `printf '{\n  "clientVersion": {\n    "major": "1",\n    "minor": "%s"\n  },\n  "serverVersion": {\n    "major": "1",\n    "minor": "37"\n  }\n}\n' `
	for minor, ok := range map[string]bool{"32": false, "35": false, "36": true, "37": true, "38": true, "38+": true, "39": false} {
		bin := fake(t, map[string]string{"docker": "", "go": "", "kind": "echo gpu-demo", "kubectl": versions + minor, "env": "echo env $*"})
		out, err := script(t, tree(t, made...), "kind.sh", []string{"PATH=" + bin + ":/usr/bin:/bin"}, "up")
		if refused := strings.Contains(out, "put a kubectl of 1.37 first in PATH"); (err == nil) != ok || refused == ok {
			t.Errorf("kubectl of 1.%s: %v\n%s", minor, err, out)
		}
	}
}

func TestKind_DockerWithoutBuildKit_SaysWhatToInstall(t *testing.T) {
	for _, docker := range []struct {
		version string
		buildx  int
		ok      bool
	}{{"20.10.24", 1, true}, {"28.1.1", 1, false}, {"28.1.1", 0, true}} {
		text := `case $1 in version) echo ` + docker.version + `;; buildx) exit ` + map[int]string{0: "0", 1: "1"}[docker.buildx] +
			`;; build) echo "BuildKit is $DOCKER_BUILDKIT"; exit 7;; esac`
		bin := fake(t, map[string]string{"docker": text, "go": "", "kind": "", "kubectl": ""})
		out, err := script(t, tree(t), "kind.sh", []string{"PATH=" + bin + ":/usr/bin:/bin"}, "up")
		if err == nil {
			t.Fatalf("%s: the build failed, and the script did not", docker.version)
		}
		if builds := strings.Contains(out, "BuildKit is 1"); builds != docker.ok || strings.Contains(out, "install docker-buildx") == docker.ok {
			t.Errorf("Docker %s, buildx %d:\n%s", docker.version, docker.buildx, out)
		}
	}
}

// TestNode_Verbs_CallDockerAndKind has programs that print their calls.
func TestNode_Verbs_CallDockerAndKind(t *testing.T) {
	bin := fake(t, map[string]string{
		"docker": "echo docker $*", "kind": "echo kind $*", "sleep": "",
		// The kubelet has renewed its lease an hour from now.
		"kubectl": `case $* in *lease*) date -u -d '1 hour' +%Y-%m-%dT%H:%M:%S.000000Z;; *) echo kubectl $* >&2;; esac`,
	})
	for args, want := range map[string]string{
		"exec --dir d -- ls --dir x":    "docker exec -i gpu-demo-control-plane ls --dir x\n",
		"load --dir d a.tar b.tar":      "kind load image-archive -q --name gpu-demo a.tar\nkind load image-archive -q --name gpu-demo b.tar\n",
		"restart --dir d kubelet":       "docker exec gpu-demo-control-plane systemctl restart kubelet\n",
		"stop --dir d containerd":       "docker exec gpu-demo-control-plane systemctl stop containerd\n",
		"reboot --dir d":                "docker exec gpu-demo-control-plane systemctl stop kubelet\n",
		"which kubectl":                 filepath.Join(bin, "kubectl") + "\n",
		"exec --dir d -- cat /some/doc": "docker exec -i gpu-demo-control-plane cat /some/doc\n",
	} {
		out, err := script(t, tree(t), "node.sh", []string{"PATH=" + bin + ":/usr/bin:/bin"}, strings.Fields(args)...)
		if err != nil || out != want {
			t.Errorf("node.sh %s: %v\n%s", args, err, cmp.Diff(want, out))
		}
	}
}

func TestKind_BadArguments_PrintUsage(t *testing.T) {
	plain := tree(t)
	for _, args := range [][]string{{}, {"sideways"}, {"up", "now"}, {"down", "now"}} {
		if out, err := script(t, plain, "kind.sh", nil, args...); err == nil || !strings.Contains(out, "kind.sh up ") {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	if out, err := script(t, plain, "node.sh", nil, "sideways"); err == nil || !strings.Contains(out, "node.sh exec ") {
		t.Errorf("node.sh: %v\n%s", err, out)
	}
}
