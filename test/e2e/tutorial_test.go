//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"gpu-dra-driver/test/e2e/tutorial"
)

// TestTutorial_EveryCommand_PrintsWhatThePageShows follows docs/getting-started.md on the suite's cluster, which is
// the one that make demo-up starts.
func TestTutorial_EveryCommand_PrintsWhatThePageShows(t *testing.T) {
	ctx := testContext(t)
	page, err := os.ReadFile(filepath.Join(cluster.Tree, "docs", "getting-started.md"))
	must(t, err)
	steps, err := tutorial.Steps(string(page))
	must(t, err)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, name := range []string{"one-gpu", "nvlink-fill", "extended-resource", "unsatisfiable"} {
			if err := cluster.Remove(context.WithoutCancel(ctx), findDemo(t, name)); err != nil {
				t.Error(err)
			}
		}
	})
	for _, s := range steps {
		if s.Setup {
			continue
		}
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", s.Commands)
		cmd.Dir = cluster.Tree
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(cluster.KubectlPath)+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err == nil {
			err = s.Check(string(out))
		}
		if err != nil {
			t.Fatalf("line %d: %s%v\n%s", s.Line, s.Commands, err, out)
		}
	}
	checkClean(ctx, t)
}
