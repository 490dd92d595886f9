// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpu-dra-driver/test/fleetserver"
)

// token is the password of the API server, which listens on the loopback interface while the bench runs.
const token = "bench"

// controlPlane is etcd and an API server, and the scheduler's settings. There are no controllers.
type controlPlane struct {
	options
	dir                       string
	programs                  map[string]string
	etcd, server              *process
	schedulerPort, serverPort int
	cancel                    context.CancelCauseFunc
	client                    kubernetes.Interface
	// profile has further settings of the scheduler, one a line.
	profile string
}

// programPaths returns the paths of Kubernetes' programs in onenode's cache.
func programPaths(ctx context.Context, onenode, version string) (map[string]string, error) {
	paths := map[string]string{}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-scheduler"} {
		out, err := exec.CommandContext(ctx, onenode, "which", name, "--kubernetes", version).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("find %s by `%s which`: %w: %s", name, onenode, err, out)
		}
		paths[name] = strings.TrimSpace(string(out))
	}
	return paths, nil
}

// freePorts returns ports of the loopback interface that no process listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // All stay open until the last is chosen.
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// start starts etcd and the API server, and waits until it serves. Call stop even after an error.
func (c *controlPlane) start(ctx context.Context) error {
	ports, err := freePorts(4)
	if err != nil {
		return err
	}
	c.serverPort, c.schedulerPort = ports[2], ports[3]
	store, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if c.etcd, err = startProcess(c.cancel, c.dir, c.programs["etcd"], "--data-dir="+c.file("etcd"), "--log-level=error",
		"--listen-client-urls="+store, "--advertise-client-urls="+store, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer,
		"--unsafe-no-fsync", "--quota-backend-bytes=8589934592"); err != nil {
		return err
	}
	pair, err := fleetserver.NewPair("127.0.0.1")
	if err != nil {
		return err
	}
	for name, data := range map[string]string{"server.crt": string(pair.Cert), "server.key": string(pair.Key), "tokens": token + ",bench,bench,system:masters\n"} {
		if err := os.WriteFile(c.file(name), []byte(data), 0o600); err != nil {
			return err
		}
	}
	// Without controllers nothing creates service accounts or removes the taint of a new node.
	if c.server, err = startProcess(c.cancel, c.dir, c.programs["kube-apiserver"], "--etcd-servers="+store,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.serverPort),
		"--tls-cert-file="+c.file("server.crt"), "--tls-private-key-file="+c.file("server.key"), "--token-auth-file="+c.file("tokens"),
		"--authorization-mode=RBAC", "--anonymous-auth=false", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://bench", "--service-account-key-file="+c.file("server.crt"), "--service-account-signing-key-file="+c.file("server.key"),
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--enable-priority-and-fairness=false", "--profiling=false"); err != nil {
		return err
	}
	config := &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", c.serverPort), BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: pair.Cert}, ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"}}
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	return c.until(ctx, "the API server serves", func() error {
		_, err := c.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		return err
	})
}

func (c *controlPlane) stop() {
	c.server.stop()
	c.etcd.stop()
}

func (c *controlPlane) file(name string) string { return filepath.Join(c.dir, name) }

// until repeats a condition for up to a minute.
func (c *controlPlane) until(ctx context.Context, what string, condition func() error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		last = condition()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait until %s: %w (%w)", what, err, last)
	}
	return nil
}

// startScheduler starts a scheduler with the default profile. Its default limit of 50 requests a second is raised,
// because that would be the limit of plain devices.
func (c *controlPlane) startScheduler(args ...string) (*process, error) {
	kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: bench, cluster: {server: "https://127.0.0.1:%d", certificate-authority: %q}}]
users: [{name: bench, user: {token: %s}}]
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
current-context: bench
`, c.serverPort, c.file("server.crt"), token)
	config := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 5000, burst: 5000, contentType: application/vnd.kubernetes.protobuf}
percentageOfNodesToScore: %d
parallelism: %d
%s`, c.file("kubeconfig"), c.percentage, c.parallelism, c.profile)
	for name, text := range map[string]string{"kubeconfig": kubeconfig, "scheduler.yaml": config} {
		if err := os.WriteFile(c.file(name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	args = append(args, "--config="+c.file("scheduler.yaml"), "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.schedulerPort))
	return startProcess(c.cancel, c.dir, c.programs["kube-scheduler"], args...)
}
