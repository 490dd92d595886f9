// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"os"
	"path/filepath"
)

// PluginDirectories creates below dir the node's directories for a plugin that runs as a separate process.
func (e *Env) PluginDirectories(dir string) error {
	for _, d := range []string{"plugins", "registry", "cdi"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// PluginArguments returns the arguments of the shipped binary on the simulated machine, with its directories below
// dir. It publishes nothing before the kubelet's pod-resources API answers in dir: kubelettest.ServePodResources.
func (e *Env) PluginArguments(dir, node string) []string {
	return []string{
		"--node-name", node, "--kubeconfig", os.Getenv("KUBECONFIG"),
		"--nvidia-driver-root", e.Root, "--container-driver-root", e.Root, "--dev-root", e.Root,
		"--proc-root", filepath.Join(e.Root, "proc"), "--sys-root", filepath.Join(e.Root, "sys"),
		"--boot-id-file", filepath.Join(e.Root, "proc/sys/kernel/random/boot_id"),
		"--cdi-root", filepath.Join(dir, "cdi"),
		"--kubelet-plugins-directory-path", filepath.Join(dir, "plugins"),
		"--kubelet-registrar-directory-path", filepath.Join(dir, "registry"),
		"--kubelet-pod-resources-directory-path", dir,
		"--http-endpoint", "", "--healthcheck-port", "-1",
		"--nvidia-cdi-hook-path", filepath.Join(e.Tree, "bin", "dra-kubelet-plugin"),
		"-v", "1",
	}
}
