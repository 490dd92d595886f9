// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// leaves are calls in tests that leave a process, a mount or a device node on the machine when a signal ends the test.
var leaves = []string{
	".Mount(", ".Mknod(", "SysProcAttr", "simtest.Root(", "devicestatetest.New(", "supervisor.New(", ".StartSupervisor(", "cmd.Start()", ".StdoutPipe()",
}

// unboxed lists the packages whose tests leave such things without a box, with the reason.
var unboxed = map[string]string{
	"deployments/images":            "programs that end by themselves",
	"test/cluster/integration":      "the watcher of a cluster outlives the test, and removes its cgroups, which a box keeps",
	"internal/host":                 "its mounts are of a thread's own namespace",
	"test/cluster/internal/sandbox": "its mounts are of a namespace of their own",
	"test/e2e":                      "onenode run ends the cluster with the test",
	"test/e2e/monitoring":           "onenode run ends the cluster with the test",
	"test/e2e/release":              "onenode run ends the cluster with the test",
	"test/hardware":                 "NVML and MPS of real GPUs name processes by their numbers outside of a box",
}

// TestTests_LeaveProcessesAndMounts_RunInABox reads the tests of all modules.
func TestTests_LeaveProcessesAndMounts_RunInABox(t *testing.T) {
	what, box := map[string]string{}, map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return err
		}
		if !strings.HasSuffix(path, "_test.go") || d.Name() == "boxes_test.go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel("../..", filepath.Dir(path))
		for _, call := range leaves {
			if strings.Contains(string(text), call) {
				what[pkg] = strings.Trim(call, ".()")
			}
		}
		box[pkg] = box[pkg] || strings.Contains(string(text), "boxtest.Main(m)") || pkg == "internal/boxtest"
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if what["internal/mpsd/supervisor"] == "" {
		t.Error("the supervisor's tests are not found, so this looks in the wrong place")
	}
	for pkg, call := range what {
		if !box[pkg] && unboxed[pkg] == "" {
			t.Errorf("the tests of %s call %s: call boxtest.Main in TestMain, so that a killed test leaves nothing", pkg, call)
		}
	}
	for pkg := range unboxed {
		if what[pkg] == "" || box[pkg] {
			t.Errorf("%s needs no place in unboxed", pkg)
		}
	}
}
