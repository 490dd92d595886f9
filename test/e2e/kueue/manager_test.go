//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpu-dra-driver/test/e2e/env"
)

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// installManager runs the program in KUEUE_MANAGER with the manifests in KUEUE_MANIFESTS and the configuration of the demo.
func installManager(ctx context.Context, t *testing.T, s *env.Env) {
	t.Helper()
	manager, manifests := os.Getenv("KUEUE_MANAGER"), os.Getenv("KUEUE_MANIFESTS")
	if manager == "" || manifests == "" {
		t.Fatal("KUEUE_MANAGER and KUEUE_MANIFESTS are not set: run make test-ecosystem")
	}
	dir := t.TempDir()
	// `kubectl kustomize` refuses absolute paths.
	base, err := filepath.Rel(dir, manifests)
	must(t, err)
	testdata := filepath.Join(s.Tree, "test/e2e/kueue/testdata")
	overlay := strings.NewReplacer("[base]", "["+base+"]", "MANAGER", manager).Replace(read(t, filepath.Join(testdata, "kustomization.yaml")))
	config := read(t, filepath.Join(s.Tree, "demo/kueue/configuration.yaml")) + read(t, filepath.Join(testdata, "manager.yaml"))
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "controller_manager_config.yaml"), []byte(config), 0o600))
	must(t, s.Step("install Kueue", func() error {
		if _, err := s.Kubectl(ctx, "apply", "--server-side", "--kustomize", dir); err != nil {
			return err
		}
		// It waits for the kubelet to refresh the volume of its new certificate, which takes a minute.
		_, err := s.Kubectl(ctx, "-n", "kueue-system", "rollout", "status", "deployment", "--timeout=240s")
		return err
	}))
}
