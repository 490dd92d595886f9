// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pod is a pod of the probe; security is a securityContext or empty.
func pod(name, security string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: probe
    image: %s
    imagePullPolicy: Never
    securityContext: {%s}
    env: [{name: PROBE, value: seen}]
`, name, probeImage, security)
}

func (c cluster) waitReady(names ...string) {
	c.t.Helper()
	for _, name := range names {
		if out, err := c.kubectl("", "wait", "--for=condition=Ready", "--timeout=60s", "pod/"+name); err != nil {
			d, _ := c.kubectl("", "describe", "pod/"+name)
			c.t.Fatalf("pod %s: %v\n%s\n%s", name, err, out, d)
		}
	}
}

func TestUp_OneNode_RunsPodsAndLeavesNothing(t *testing.T) {
	c := newCluster(t)
	start := time.Now()
	out := c.must("up")
	t.Logf("up took %v", time.Since(start).Round(time.Millisecond))
	identity := c.identity()
	if want := "export KUBECONFIG=" + c.dir + "/kubeconfig\n"; !strings.HasSuffix(out, want) {
		t.Errorf("up printed\n%s\nwant it to end in %q", out, want)
	}
	if out, err := c.try("up"); err == nil || !strings.Contains(out, "a cluster is up here") {
		t.Errorf("up of what is up: %v, %s", err, out)
	}
	c.must("load", programs.archive)
	c.mustKubectl(pod("one", ""), "apply", "-f", "-")
	c.mustKubectl(pod("strict", "runAsNonRoot: true, runAsUser: 65532, readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}"), "apply", "-f", "-")
	c.mustKubectl(strings.Replace(pod("host", ""), "spec:", "spec:\n  hostNetwork: true", 1), "apply", "-f", "-")
	c.waitReady("one", "strict", "host")

	t.Run("pods reach the API server with their token", func(t *testing.T) {
		for _, name := range []string{"one", "strict", "host"} {
			eventually(t, 20*time.Second, func() string {
				out, err := c.kubectl("", "logs", name)
				if err != nil || out != "API server: reached\n" {
					return fmt.Sprintf("kubectl logs %s: %v %s", name, err, out)
				}
				return ""
			})
		}
	})
	t.Run("kubectl exec looks inside", func(t *testing.T) {
		c := cluster{t, c.dir}
		if out := c.mustKubectl("", "exec", "one", "--", "/probe", "env", "PROBE"); out != "seen\n" {
			t.Errorf("got %q", out)
		}
	})
	t.Run("onenode exec runs in the node", func(t *testing.T) {
		c := cluster{t, c.dir}
		if out := c.must("exec", "--", "sh", "-c", "hostname; ls -d /var/run/cdi /etc/cdi 2>&1 | tail -1"); !strings.HasPrefix(out, "onenode\n") {
			t.Errorf("got %q", out)
		}
		_, err := c.try("exec", "--", "sh", "-c", "exit 42")
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 42 {
			t.Errorf("exit code 42 became %v", err)
		}
		cmd := exec.Command(programs.onenode, "exec", "--dir", c.dir, "--", "cat")
		cmd.Stdin = strings.NewReader("through")
		if out, err := output(cmd); err != nil || out != "through" {
			t.Errorf("standard input: %q, %v", out, err)
		}
	})
	t.Run("a component stops and starts", func(t *testing.T) {
		c := cluster{t, c.dir}
		c.must("stop", "kube-scheduler")
		if out := c.must("status"); !strings.Contains(out, "stopped") {
			t.Errorf("status after stop:\n%s", out)
		}
		c.must("start", "kube-scheduler")
		for _, name := range []string{"kubelet", "containerd", "kube-apiserver"} {
			c.must("restart", name)
		}
		if out, err := c.try("restart", "kube-proxy"); err == nil || !strings.Contains(out, "no component") {
			t.Errorf("restart of what there is not: %v %s", err, out)
		}
		eventually(t, 30*time.Second, func() string {
			out, err := c.kubectl("", "get", "pods", "--no-headers")
			if err != nil || strings.Count(out, "Running   0 ") != 3 {
				return fmt.Sprintf("pods after restarts: %v\n%s", err, out)
			}
			return ""
		})
	})
	t.Run("a reboot ends containers, empties /run and changes the boot ID", func(t *testing.T) {
		c := cluster{t, c.dir}
		state := "cat /proc/sys/kernel/random/boot_id; mkdir -p /run/cdi; ls /run/cdi; touch /run/cdi/mark"
		old := c.must("exec", "--", "sh", "-c", state)
		c.must("reboot")
		if now := c.must("exec", "--", "sh", "-c", state); now == old || strings.Contains(now, "mark") {
			t.Errorf("boot ID and /run/cdi before:\n%s\nafter:\n%s", old, now)
		}
		// A container may fail to start until the new kubelet has seen the services.
		eventually(t, 90*time.Second, func() string {
			out, err := c.kubectl("", "get", "pods", "-o", `jsonpath={range .items[*]}{.status.containerStatuses[0].ready}{.status.containerStatuses[0].restartCount}{" "}{end}`)
			if err != nil || strings.Count(out, "true") != 3 || strings.Contains(out, "true0") {
				return fmt.Sprintf("pods after the reboot: %v\n%s", err, out)
			}
			return ""
		})
	})
	c.checkSeparate(identity, 1)
	start = time.Now()
	c.must("down")
	t.Logf("down took %v", time.Since(start).Round(time.Millisecond))
	c.assertNothingLeft(identity)
}

func TestRun_CommandFails_PassesExitCodeAndLeavesNothing(t *testing.T) {
	c := newCluster(t)
	note := filepath.Join(t.TempDir(), "identity")
	out, err := c.try("run", "--", "sh", "-c", `
		id=onenode-$(grep -o '"id": "[^"]*' $ONENODE_DIR/onenode.json | cut -d'"' -f4)
		echo $id > `+note+`
		`+programs.onenode+` exec --dir $ONENODE_DIR -- sh -c "$0" sh $id && kubectl get node onenode && exit 3`, markScript)
	b, noteErr := os.ReadFile(note)
	if noteErr != nil {
		t.Fatalf("the command did not run: %v, %v\n%s", noteErr, err, out)
	}
	identity := strings.TrimSpace(string(b))
	c.removeMarks(identity)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("exit code 3 became %v\n%s", err, out)
	}
	c.assertNothingLeft(identity)
}

func TestRun_Killed_LeavesNothing(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String()+" while the command runs", func(t *testing.T) {
			c := newCluster(t)
			cmd := exec.Command(programs.onenode, "run", "--dir", c.dir, "--", "sh", "-c", "echo ready; exec sleep 600")
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
			c.mustKubectl(pod("one", ""), "apply", "-f", "-")
			c.waitReady("one")
			if len(c.processes(identity)) < 8 {
				t.Fatalf("the cluster's processes are not recognized: %v", c.processes(identity))
			}
			c.checkSeparate(identity, 1)
			cmd.Process.Signal(signal)
			cmd.Wait()
			c.assertNothingLeft(identity)
		})
	}
	t.Run("killed on the way up", func(t *testing.T) {
		c := newCluster(t)
		cmd := exec.Command(programs.onenode, "up", "--dir", c.dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, 30*time.Second, func() string {
			if _, err := os.Stat(filepath.Join(c.dir, "logs", "kube-apiserver.log")); err != nil {
				return err.Error()
			}
			return ""
		})
		identity := c.identity()
		cmd.Process.Kill()
		cmd.Wait()
		c.assertNothingLeft(identity)
	})
}
