// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// kubectlName is the name of the program by which kubectl finds it: kubectl gpu-sim.
const kubectlName = "kubectl-gpu_sim"

const kubectlUsage = `kubectl gpu-sim [KUBECTL-FLAG=VALUE...] list|inject|mig|reboot NODE [ARGUMENT...]

Runs a verb of gpusim in the pod of the chart gpu-simulator on a node:

  kubectl gpu-sim list node-1
  kubectl gpu-sim inject node-1 lose 3
  kubectl gpu-sim inject node-1 --help
`

// onNode runs a verb on a node of a cluster, by kubectl.
func onNode(args []string, out io.Writer) error {
	var global []string
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "-h" && args[0] != "--help" {
		if !strings.Contains(args[0], "=") {
			return fmt.Errorf("write %s=VALUE, with an equals sign", args[0])
		}
		global, args = append(global, args[0]), args[1:]
	}
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		fmt.Fprint(out, kubectlUsage)
		return nil
	}
	verb := args[0]
	if !slices.Contains([]string{"list", "inject", "mig", "reboot"}, verb) {
		return fmt.Errorf("no verb %q: kubectl gpu-sim --help lists them", verb)
	}
	if len(args) < 2 || strings.HasPrefix(args[1], "-") {
		return fmt.Errorf("give the node: kubectl gpu-sim %s NODE", verb)
	}
	node, rest := args[1], args[2:]
	found, err := kubectl(append(slices.Clone(global), "get", "pods", "--all-namespaces",
		"--selector=app.kubernetes.io/name=gpu-simulator,app.kubernetes.io/component=node", "--field-selector=spec.nodeName="+node+",status.phase=Running",
		`--output=jsonpath={range .items[*]}{.metadata.namespace}{" "}{.metadata.name}{"\n"}{end}`))
	if err != nil {
		return fmt.Errorf("looking for the simulator's pod on node %s: %w", node, err)
	}
	pods := strings.Fields(found)
	if len(pods) != 2 {
		return fmt.Errorf("node %s has %d running pods of the chart gpu-simulator, want 1: check the name, and the DaemonSet's node selector", node, len(pods)/2)
	}
	answer, err := kubectl(append(append(global, "exec", "--namespace="+pods[0], pods[1], "--", "/usr/bin/gpusim", verb), rest...))
	fmt.Fprint(out, answer)
	if err != nil {
		return fmt.Errorf("on node %s: %w", node, err)
	}
	return nil
}

// kubectl returns the output of kubectl. An error has its messages.
func kubectl(args []string) (string, error) {
	cmd := exec.CommandContext(context.Background(), "kubectl", args...)
	cmd.Env = os.Environ()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		return stdout.String(), nil
	}
	if messages := strings.TrimSpace(stderr.String()); messages != "" {
		err = errors.New(messages)
	}
	return stdout.String(), err
}
