//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package beta

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
)

// helm runs Helm in the release's namespace.
func helm(ctx context.Context, args ...string) (string, error) {
	return cluster.Run(ctx, filepath.Join(cluster.Tree, "hack", "tool.sh"), append([]string{"helm", "-n", env.Namespace}, args...)...)
}

// TestWebhook_WrongParameters_Refused writes the same claim with invalid and with valid parameters.
func TestWebhook_WrongParameters_Refused(t *testing.T) {
	ctx := testContext(t)
	const want = `spec.devices.config[0].opaque.parameters.sharing.strategy: Forbidden: "Turns" is not known, use TimeSlicing or MPS`
	eventually(ctx, t, "the webhook to refuse", func(ctx context.Context) (bool, string) {
		out, err := cluster.Kubectl(ctx, "create", "--dry-run=server", "-f", cluster.Tree+"/test/e2e/beta/testdata/wrong.yaml")
		return err != nil && strings.Contains(out, want), out
	})
	_, err := cluster.Kubectl(ctx, "apply", "--dry-run=server", "-n", "default", "-f", cluster.Tree+"/test/e2e/beta/testdata/right.yaml")
	must(t, err)
}

func TestController_BetaAPI_RepairsClassesAndLabels(t *testing.T) {
	ctx := testContext(t)
	const model = "nvidia-h100-80gb-hbm3." + env.Driver
	classes := cluster.Client.ResourceV1().DeviceClasses()
	there := func(what string) (expression string) {
		t.Helper()
		eventually(ctx, t, what, func(ctx context.Context) (bool, string) {
			c, err := classes.Get(ctx, model, metav1.GetOptions{})
			if err != nil || len(c.Spec.Selectors) != 1 {
				return false, fmt.Sprint(err)
			}
			expression = c.Spec.Selectors[0].CEL.Expression
			return expression != "false", expression
		})
		return expression
	}
	was := there("the class of the model")
	must(t, classes.Delete(ctx, model, metav1.DeleteOptions{}))
	if is := there("the class again"); is != was {
		t.Errorf("the class selects by %q, and did by %q", is, was)
	}
	c, err := classes.Get(ctx, model, metav1.GetOptions{})
	must(t, err)
	c.Spec.Selectors[0].CEL.Expression = "false"
	_, err = classes.Update(ctx, c, metav1.UpdateOptions{})
	must(t, err)
	if is := there("the class as it should be"); is != was {
		t.Errorf("the class selects by %q, and did by %q", is, was)
	}
	eventually(ctx, t, "the labels of the node", func(ctx context.Context) (bool, string) {
		nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		l := nodes.Items[0].Labels
		return l["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3" && l["nvidia.com/gpu.count"] == "8" && l["nvidia.com/gpu.memory"] == "81559", fmt.Sprint(l)
	})
}

// TestHelm_Test_Passes runs the chart's own test.
func TestHelm_Test_Passes(t *testing.T) {
	out, err := helm(testContext(t), "test", env.Release)
	if err != nil || !strings.Contains(out, "Phase:          Succeeded") {
		t.Errorf("helm test: %v\n%s", err, out)
	}
}
