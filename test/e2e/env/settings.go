// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Configure upgrades the chart to the settings of a demo, a file of demo/settings or none, unless they are in force.
// It waits until the published devices match.
func (e *Env) Configure(ctx context.Context, settings string) error {
	if settings == e.settings {
		return nil
	}
	return e.Step("settings: "+settings, func() error {
		var args []string
		shared := false
		if settings != "" {
			path := filepath.Join(e.Tree, "demo", "settings", settings)
			values, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			args, shared = []string{"--values", path}, bytes.Contains(values, []byte("\nsharing:"))
		}
		if err := e.Helm(ctx, args...); err != nil {
			return err
		}
		e.settings = settings
		return e.Eventually(ctx, "slices that follow the settings", 60*time.Second, func(ctx context.Context) (bool, string) {
			devices, err := e.Devices(ctx, "gpu")
			if err != nil {
				return false, err.Error()
			}
			for _, d := range devices {
				c := d.Capacity["memory"]
				if c.RequestPolicy == nil || c.RequestPolicy.Default == nil {
					return false, d.Name + " is not shared"
				}
				if share := c.RequestPolicy.Default.Cmp(c.Value) < 0; share != shared {
					return false, fmt.Sprintf("the default share of %s is %s of %s", d.Name, c.RequestPolicy.Default, &c.Value)
				}
			}
			return len(devices) > 0, "no GPU is published"
		})
	})
}
