//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"context"
	"os"
	"path/filepath"

	"gpu-dra-driver/test/e2e/env"
)

// installManager runs Kueue with the configuration of the demo.
func installManager(ctx context.Context, s *env.Env) error {
	config := ""
	for _, file := range []string{"demo/kueue/configuration.yaml", "test/e2e/kueue/testdata/manager.yaml"} {
		data, err := os.ReadFile(filepath.Join(s.Tree, file))
		if err != nil {
			return err
		}
		config += string(data)
	}
	return s.Step("install Kueue", func() error { return s.InstallManager(ctx, env.Manager{Name: "kueue", Config: config}) })
}
