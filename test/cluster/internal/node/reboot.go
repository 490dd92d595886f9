// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"gpu-dra-driver/test/cluster/internal/sandbox"
)

// reboot does to the node what a reboot of the machine does: every container ends at once, /run and /dev/shm are
// empty, the boot ID is new. The control plane and the other nodes stay, as on other machines.
func (n *node) reboot(ctx context.Context) error {
	for _, name := range []string{"kubelet", "containerd"} {
		if err := n.supervisor.stop(ctx, name); err != nil {
			return err
		}
	}
	components := n.supervisor.pids()
	spare := func(pid int) bool { return slices.Contains(components, pid) || n.onFurtherNode(pid) }
	err := errors.Join(
		n.procs.killExcept(ctx, spare),
		sandbox.ClearPods(ctx, n.spec.Cgroup()),
		sandbox.Reboot(n.spec, n.mounts),
	)
	if err != nil {
		return fmt.Errorf("reboot the node: %w", err)
	}
	for _, name := range []string{"containerd", "kubelet"} {
		if err := n.supervisor.start(ctx, name); err != nil {
			return err
		}
	}
	// Until the kubelet has reported, the API server shows the node's old status.
	bootID, err := os.ReadFile(sandbox.BootIDFile)
	if err != nil {
		return err
	}
	return poll(ctx, func() error { return n.probe.nodeReady(ctx, strings.TrimSpace(string(bootID))) })
}
