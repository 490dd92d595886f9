// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var nodeNames = []string{"onenode", "onenode-2"}

// pinned is a pod on a node, with the node's name. It mounts the CDI directory and the driver root and serves their
// files.
func (c cluster) pinned(node string) string {
	p := strings.Replace(pod(node, ""), "spec:", fmt.Sprintf(`spec:
  nodeName: %s
  volumes:
  - {name: cdi, hostPath: {path: /var/run/cdi, type: DirectoryOrCreate}}
  - {name: driver, hostPath: {path: %s, type: DirectoryOrCreate}}`, node, filepath.Join(c.dir, "driver")), 1)
	return p + `    args: [serve]
    volumeMounts:
    - {name: cdi, mountPath: /cdi}
    - {name: driver, mountPath: /driver}
`
}

// served returns a pod's answer to the API server, which dials the pod's address.
func (c cluster) served(pod string) (string, error) {
	return c.kubectl("", "get", "--raw", "/api/v1/namespaces/default/pods/"+pod+":8080/proxy/")
}

func TestUp_TwoNodes_SeparateAndLeaveNothing(t *testing.T) {
	c := newCluster(t)
	start := time.Now()
	c.must("up", "--nodes", "2")
	t.Logf("up took %v", time.Since(start).Round(time.Millisecond))
	identity := c.identity()
	c.mustKubectl("", "wait", "--for=condition=Ready", "--timeout=30s", "node/onenode", "node/onenode-2")
	c.must("load", programs.archive)
	for _, node := range nodeNames {
		c.mustKubectl(c.pinned(node), "apply", "-f", "-")
	}
	c.waitReady(nodeNames...)

	t.Run("pods of both nodes reach the API server", func(t *testing.T) {
		for _, name := range nodeNames {
			eventually(t, 20*time.Second, func() string {
				out, err := c.kubectl("", "logs", name)
				if err != nil || out != "API server: reached\n" {
					return fmt.Sprintf("kubectl logs %s: %v %s", name, err, out)
				}
				return ""
			})
		}
	})
	t.Run("what a pod or a program writes on one node is not on the other", func(t *testing.T) {
		c := cluster{t, c.dir}
		want := map[string]string{}
		for i, name := range nodeNames {
			c.mustKubectl("", "exec", name, "--", "/probe", "touch", "/cdi/by-pod-on-"+name)
			c.must("exec", "--node", fmt.Sprint(i+1), "--", "touch", filepath.Join(c.dir, "driver", "by-program-on-"+name))
			want[name] = "/cdi/by-pod-on-" + name + "\n/driver/by-program-on-" + name + "\n"
		}
		for i, name := range nodeNames {
			// The API server reaches the pod, and so does a pod of the other node.
			if out, err := c.served(name); err != nil || out != want[name] {
				t.Errorf("%s serves %q, %v, want %q", name, out, err, want[name])
			}
			ip := c.mustKubectl("", "get", "pod", name, "-o", "jsonpath={.status.podIP}")
			if out := c.mustKubectl("", "exec", nodeNames[1-i], "--", "/probe", "get", "http://"+ip+":8080/"); out != want[name] {
				t.Errorf("%s serves a pod on %s %q, want %q", name, nodeNames[1-i], out, want[name])
			}
			if out := c.must("exec", "--node", fmt.Sprint(i+1), "--", "sh", "-c", "hostname; ls /var/run/cdi"); out != name+"\nby-pod-on-"+name+"\n" {
				t.Errorf("a program on node %d sees %q", i+1, out)
			}
		}
	})
	t.Run("a node that there is not", func(t *testing.T) {
		if out, err := c.try("exec", "--node", "3", "--", "true"); err == nil || !strings.Contains(out, "nodes 1 to 2") {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("a node restarts and reboots without the other", func(t *testing.T) {
		c := cluster{t, c.dir}
		c.must("restart", "--node", "2", "kubelet")
		for i, rebooted := range nodeNames {
			other := nodeNames[1-i]
			restarts := func(name string) string {
				return c.mustKubectl("", "get", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
			}
			had := restarts(other)
			c.must("reboot", "--node", fmt.Sprint(i+1))
			eventually(t, 90*time.Second, func() string {
				if out, err := c.served(rebooted); err != nil || strings.Contains(out, "/cdi/") {
					return fmt.Sprintf("%s after its reboot: %v %s", rebooted, err, out)
				}
				return ""
			})
			if now := restarts(other); now != had {
				t.Errorf("restarts of the pod on %s before and after the reboot of %s: %s, %s", other, rebooted, had, now)
			}
		}
	})
	c.checkSeparate(identity, 2)
	start = time.Now()
	c.must("down")
	t.Logf("down took %v", time.Since(start).Round(time.Millisecond))
	c.assertNothingLeft(identity)
}

func TestRun_TwoNodesKilled_LeavesNothing(t *testing.T) {
	c := newCluster(t)
	cmd := exec.Command(programs.onenode, "run", "--dir", c.dir, "--nodes", "2", "--", "sh", "-c", "echo ready; exec sleep 600")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the command did not start: %v", err)
	}
	identity := c.identity()
	c.must("load", programs.archive)
	c.mustKubectl(c.pinned("onenode-2"), "apply", "-f", "-")
	c.waitReady("onenode-2")
	c.checkSeparate(identity, 2)
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	c.assertNothingLeft(identity)
}
