// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Manager is the manager of another project, for InstallManager. <NAME>_MANAGER is its program, and <NAME>_MANIFESTS the directory of
// its manifests for `kubectl kustomize`; hack/test-ecosystem.sh sets both. The manifests run the program as /manager.
type Manager struct {
	Name string
	// Namespace of the manifests. Default: <name>-system.
	Namespace string
	// Container is the name of the container with the program. Default: manager.
	Container string
	// Config is the content of controller_manager_config.yaml in the ConfigMap <name>-manager-config of the manifests. Default:
	// their own.
	Config string
	// Component is a directory of the tree with a Component of kustomize, which changes the manifests.
	Component string
}

// InstallManager runs the manager of another project and waits until it is ready.
func (e *Env) InstallManager(ctx context.Context, m Manager) error {
	variable := strings.ToUpper(m.Name)
	program, manifests := os.Getenv(variable+"_MANAGER"), os.Getenv(variable+"_MANIFESTS")
	if program == "" || manifests == "" {
		return fmt.Errorf("install %s: %s_MANAGER and %[2]s_MANIFESTS are not set: run make test-ecosystem", m.Name, variable)
	}
	dir, err := os.MkdirTemp("", m.Name)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	namespace := cmp.Or(m.Namespace, m.Name+"-system")
	// `kubectl kustomize` refuses absolute paths.
	base, err := filepath.Rel(dir, manifests)
	if err != nil {
		return err
	}
	overlay, err := os.ReadFile(filepath.Join(e.Tree, "test/e2e/env/testdata/manager/kustomization.yaml"))
	if err != nil {
		return err
	}
	files := map[string]string{"kustomization.yaml": strings.NewReplacer(
		"[base]", "["+base+"]", "PROGRAM", program, "CONTAINER", cmp.Or(m.Container, "manager"),
	).Replace(string(overlay))}
	if m.Config != "" {
		files["controller_manager_config.yaml"] = m.Config
		files["kustomization.yaml"] += fmt.Sprintf(`
configMapGenerator:
  - name: %s-manager-config
    namespace: %s
    behavior: replace
    files: [controller_manager_config.yaml]
`, m.Name, namespace)
	}
	if m.Component != "" {
		component, err := filepath.Rel(dir, filepath.Join(e.Tree, m.Component))
		if err != nil {
			return err
		}
		files["kustomization.yaml"] += fmt.Sprintf("\ncomponents: [%s]\n", component)
	}
	for file, content := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			return err
		}
	}
	if _, err := e.Kubectl(ctx, "apply", "--server-side", "--kustomize", dir); err != nil {
		return err
	}
	// It waits for the kubelet to refresh the volume of its new certificate, which can take two minutes.
	_, err = e.Kubectl(ctx, "-n", namespace, "rollout", "status", "deployment", "--timeout=240s")
	return err
}
