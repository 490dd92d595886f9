// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// InstallManager runs the manager of another project, in the namespace <name>-system, and waits until it is ready. config is its
// configuration.
//
// <NAME>_MANAGER is its program and <NAME>_MANIFESTS the directory of its manifests for `kubectl kustomize`.
// hack/test-ecosystem.sh sets both. The manifests have the configuration in a ConfigMap <name>-manager-config, and its
// program as /manager.
func (e *Env) InstallManager(ctx context.Context, name, config string) error {
	variable := strings.ToUpper(name)
	manager, manifests := os.Getenv(variable+"_MANAGER"), os.Getenv(variable+"_MANIFESTS")
	if manager == "" || manifests == "" {
		return fmt.Errorf("install %s: %s_MANAGER and %[2]s_MANIFESTS are not set: run make test-ecosystem", name, variable)
	}
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// `kubectl kustomize` refuses absolute paths.
	base, err := filepath.Rel(dir, manifests)
	if err != nil {
		return err
	}
	overlay, err := os.ReadFile(filepath.Join(e.Tree, "test/e2e/env/testdata/manager/kustomization.yaml"))
	if err != nil {
		return err
	}
	text := strings.NewReplacer("[base]", "["+base+"]", "MANAGER", manager, "NAME", name).Replace(string(overlay))
	for file, content := range map[string]string{"kustomization.yaml": text, "controller_manager_config.yaml": config} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			return err
		}
	}
	if _, err := e.Kubectl(ctx, "apply", "--server-side", "--kustomize", dir); err != nil {
		return err
	}
	// It waits for the kubelet to refresh the volume of its new certificate, which can take two minutes.
	_, err = e.Kubectl(ctx, "-n", name+"-system", "rollout", "status", "deployment", "--timeout=240s")
	return err
}
