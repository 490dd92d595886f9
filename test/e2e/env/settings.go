// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// settings are a file of demo/settings, or none, and further Helm arguments.
type settings struct{ file, values string }

// Adopt takes over a cluster on which Install ran in another process, with settings that a run may have left.
func (e *Env) Adopt(ctx context.Context) error {
	e.inForce = settings{file: "unknown"}
	return e.Configure(ctx, "")
}

// Configure upgrades the chart to the settings of a demo, a file of demo/settings or none, with further Helm arguments, unless they
// are in force. It waits until the published devices match.
func (e *Env) Configure(ctx context.Context, file string, values ...string) error {
	want := settings{file, strings.Join(values, " ")}
	if want == e.inForce {
		return nil
	}
	return e.Step("settings: "+cmp.Or(file, want.values, "the chart's own"), func() error {
		args := values
		shared := strings.Contains(want.values, "sharing.config=")
		if file != "" {
			path := filepath.Join(e.Tree, "demo", "settings", file)
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			args, shared = append([]string{"--values", path}, values...), bytes.Contains(text, []byte("\nsharing:"))
		}
		if err := e.Helm(ctx, args...); err != nil {
			return err
		}
		if err := e.touchPlugins(ctx, file); err != nil {
			return err
		}
		if err := e.Eventually(ctx, "slices that follow the settings", 60*time.Second, func(ctx context.Context) (bool, string) {
			devices, err := e.Devices(ctx, "gpu")
			if err != nil {
				return false, err.Error()
			}
			for _, d := range devices {
				c := d.Capacity["memory"]
				if c.RequestPolicy == nil || c.RequestPolicy.Default == nil {
					if shared {
						return false, d.Name + " is not shared"
					}
					continue // The API server has no consumable capacity.
				}
				if share := c.RequestPolicy.Default.Cmp(c.Value) < 0; share != shared {
					return false, fmt.Sprintf("the default share of %s is %s of %s", d.Name, c.RequestPolicy.Default, &c.Value)
				}
			}
			return len(devices) > 0, "no GPU is published"
		}); err != nil {
			return err
		}
		e.inForce = want
		return nil
	})
}

// Roll replaces the pods of plugin and controller by an upgrade of the chart, with further Helm arguments, which later upgrades keep. The
// settings stay in force.
func (e *Env) Roll(ctx context.Context, values ...string) error {
	now := e.inForce
	e.rolled = append(e.rolled, values...)
	e.rolls++
	var args []string
	if now.file != "" {
		args = []string{"--values", filepath.Join(e.Tree, "demo", "settings", now.file)}
	}
	if err := e.Helm(ctx, append(args, strings.Fields(now.values)...)...); err != nil {
		return err
	}
	e.inForce = now
	return nil
}

// touchPlugins changes the plugin's pods, because then their kubelet writes a changed ConfigMap into them at once. Otherwise it
// does so when it next looks at the pod, after up to 90 s.
func (e *Env) touchPlugins(ctx context.Context, settings string) error {
	pods := e.Client.CoreV1().Pods(Namespace)
	all, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=kubelet-plugin"})
	if err != nil {
		return err
	}
	// Another value each time: the same one again would be no change.
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {"settings": "%s, %d"}}}`, settings, time.Now().UnixNano())
	for _, p := range all.Items {
		// A pod of before the upgrade can be gone.
		if _, err := pods.Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
