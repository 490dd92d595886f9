//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
	"gpu-dra-driver/test/e2e/tutorial"
)

// TestTutorial_EveryCommand_PrintsWhatThePageShows follows docs/getting-started.md on the suite's cluster, with the settings of
// make demo-up.
func TestTutorial_EveryCommand_PrintsWhatThePageShows(t *testing.T) {
	ctx := testContext(t)
	page, err := os.ReadFile(filepath.Join(cluster.Tree, "docs", "getting-started.md"))
	must(t, err)
	steps, err := tutorial.Steps(string(page))
	must(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		if t.Failed() {
			_, err := cluster.Kubectl(ctx, "delete", "pods,resourceclaimtemplates", "--all")
			if err = errors.Join(err, cluster.Remove(ctx, findDemo(t, "unsatisfiable"))); err != nil {
				t.Error(err)
			}
		}
	})
	// The page begins with the pods of a new installation. An upgrade for other settings leaves some that end.
	must(t, cluster.Eventually(ctx, "pods of earlier settings gone", time.Minute, func(ctx context.Context) (bool, string) {
		pods, err := cluster.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		if i < 0 {
			return true, ""
		}
		return false, pods.Items[i].Name + " ends"
	}))
	for _, s := range steps {
		if s.Setup {
			continue
		}
		run := func(ctx context.Context) error {
			cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", s.Commands)
			cmd.Dir = cluster.Tree
			cmd.Env = append(os.Environ(), "PATH="+filepath.Join(cluster.Tree, "bin")+":"+filepath.Dir(cluster.KubectlPath)+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if err == nil {
				err = s.Check(string(out))
			}
			if err != nil {
				return fmt.Errorf("line %d: %s%w\n%s", s.Line, s.Commands, err, out)
			}
			return nil
		}
		if !strings.Contains(s.Commands, "kubectl gpu top") {
			must(t, run(ctx))
			continue
		}
		// The use of a new pod is measured within ten seconds.
		must(t, cluster.Eventually(ctx, "the use is measured", 30*time.Second, func(ctx context.Context) (bool, string) {
			err := run(ctx)
			return err == nil, fmt.Sprint(err)
		}))
	}
	checkClean(ctx, t)
}
