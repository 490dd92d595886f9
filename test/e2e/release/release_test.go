//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package release installs a release from a registry, as users do: the nodes have none of its images. It upgrades to the next patch
// under pods, and goes back.
package release

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

// The changelog has no section of a version yet. A version with a hyphen needs none.
const first, next = "0.1.0-rc.1", "0.1.1-rc.1"

var (
	cluster  *env.Env
	registry string // registry and path
	must     = e2etest.Must
)

func TestMain(m *testing.M) {
	e2etest.Main(m, func(ctx context.Context, c *env.Env) error {
		cluster = c
		if err := startRegistry(); err != nil {
			return err
		}
		for _, version := range []string{first, next} {
			if err := c.Step("release "+version, func() error { return release(ctx, version) }); err != nil {
				return err
			}
		}
		if err := c.Sim(ctx, "up", "--profile", "hgx-h100"); err != nil {
			return err
		}
		probes, err := filepath.Glob(filepath.Join(c.Tree, "dist", "probe-*.tar"))
		if err != nil {
			return err
		}
		return c.Node(ctx, "load", probes...)
	})
}

// startRegistry runs a registry on the node, which this machine reaches too. It ends with the cluster.
func startRegistry() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	registry = fmt.Sprintf("localhost:%d/team", listener.Addr().(*net.TCPAddr).Port)
	program := filepath.Join(cluster.Tree, "bin", "registry")
	cmd := exec.Command(cluster.Onenode, "exec", "--dir", cluster.Dir, "--", program)
	cmd.Stdin = file
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	return file.Close()
}

// release makes a release of the images in dist/ and pushes it. The images of the next version differ by an annotation.
func release(ctx context.Context, version string) error {
	dist := filepath.Join(cluster.Dir, "release-"+version)
	files := map[string]string{}
	digests := ""
	for _, chart := range []string{"gpu-dra-driver", "gpu-simulator"} {
		name := "digests-" + chart + ".yaml"
		text, err := os.ReadFile(filepath.Join(cluster.Tree, "dist", name))
		if err != nil {
			return fmt.Errorf("run make images: %w", err)
		}
		files[filepath.Join(dist, name)] = string(text)
		digests += string(text)
	}
	was, err := builtLast(digests)
	if err != nil {
		return err
	}
	for _, image := range []string{"dra-controller", "dra-kubelet-plugin", "mps-supervisor", "gpu-simulator"} {
		old, to := filepath.Join(cluster.Tree, "dist", image+"-"+was), filepath.Join(dist, image+"-"+version)
		if err := os.CopyFS(to, os.DirFS(old)); err != nil {
			return err
		}
		digest, changed, err := annotate(to, version)
		if err != nil {
			return err
		}
		for name, text := range files {
			files[name] = strings.ReplaceAll(text, digest, changed)
		}
		lists, err := filepath.Glob(old + "*.spdx.json")
		if err != nil {
			return err
		}
		for _, file := range append(lists, old+".tar") {
			if err := os.Symlink(file, filepath.Join(dist, strings.Replace(filepath.Base(file), was, version, 1))); err != nil {
				return err
			}
		}
	}
	// The archives of all platforms have a test of their own.
	kubectl := filepath.Join(dist, "kubectl")
	if err := os.Mkdir(kubectl, 0o755); err != nil {
		return err
	}
	archive := filepath.Join(kubectl, "kubectl-gpu-"+version+"-linux-"+runtime.GOARCH+".tar.gz")
	if _, err := cluster.Run(ctx, "tar", "-C", "bin", "-czf", archive, "./kubectl-gpu"); err != nil {
		return err
	}
	files[filepath.Join(kubectl, "gpu.yaml")] = "spec:\n  version: v" + version + "\n"
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	_, err = cluster.Run(ctx, "go", "-C", "deployments", "run", "./release", "--version", version, "--dist", dist, "--registry", registry)
	return err
}

// builtLast returns the version of the images that have the digests. dist/ can have other versions too.
func builtLast(digests string) (string, error) {
	built, err := filepath.Glob(filepath.Join(cluster.Tree, "dist", "dra-controller-*", "index.json"))
	if err != nil {
		return "", err
	}
	for _, file := range built {
		var index struct{ Manifests []struct{ Digest string } }
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if err := json.Unmarshal(data, &index); err != nil {
			return "", err
		}
		if version := strings.TrimPrefix(filepath.Base(filepath.Dir(file)), "dra-controller-"); strings.Contains(digests, index.Manifests[0].Digest) &&
			!strings.HasSuffix(version, ".sig") {
			return version, nil
		}
	}
	return "", fmt.Errorf("none of %v has a digest of dist/digests-*.yaml; run make images", built)
}

// annotate gives the index in an OCI layout an annotation, and returns its old and its new digest.
func annotate(layout, version string) (was, is string, err error) {
	type object = map[string]any
	read := func(file string) (o object, err error) {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		return o, json.Unmarshal(data, &o)
	}
	outer, err := read(filepath.Join(layout, "index.json"))
	if err != nil {
		return "", "", err
	}
	entry := outer["manifests"].([]any)[0].(object)
	was = entry["digest"].(string)
	blob := func(digest string) string {
		return filepath.Join(layout, "blobs", strings.Replace(digest, ":", "/", 1))
	}
	index, err := read(blob(was))
	if err != nil {
		return "", "", err
	}
	index["annotations"] = map[string]string{"org.opencontainers.image.version": version}
	data, err := json.Marshal(index)
	if err != nil {
		return "", "", err
	}
	is = fmt.Sprintf("sha256:%x", sha256.Sum256(data))
	entry["digest"], entry["size"] = is, len(data)
	if err := os.WriteFile(blob(is), data, 0o644); err != nil {
		return "", "", err
	}
	if data, err = json.Marshal(outer); err != nil {
		return "", "", err
	}
	return was, is, os.WriteFile(filepath.Join(layout, "index.json"), data, 0o644)
}

// install installs or upgrades to a version.
func install(ctx context.Context, version string) error {
	cluster.Chart = "oci://" + registry + "/charts/gpu-dra-driver"
	return cluster.Helm(ctx, "--version", version, "--plain-http", "--set", "image.pullPolicy=IfNotPresent")
}

// images returns the images of the driver's pods that run.
func images(ctx context.Context, t *testing.T) map[string]bool {
	t.Helper()
	pods, err := cluster.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	found := map[string]bool{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			for _, c := range p.Spec.Containers {
				found[c.Image] = true
			}
		}
	}
	return found
}

// released returns the images that the chart of a version names.
func released(t *testing.T, version string) map[string]bool {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(cluster.Dir, "release-"+version, "release-"+version, "digests-gpu-dra-driver.yaml"))
	must(t, err)
	found := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		for key, image := range map[string]string{"image:": "dra-kubelet-plugin", "controller:": "dra-controller", "mps:": "mps-supervisor"} {
			if _, digest, ok := strings.Cut(line, "sha256:"); ok && strings.HasPrefix(line, key) {
				found[registry+"/gpu-dra-driver/"+image+"@sha256:"+digest[:64]] = true
			}
		}
	}
	return found
}

// waitImages waits until the driver runs with the images of a version. The supervisor of MPS daemons keeps its image, because the
// daemons, and with them shares, end with its pod.
func waitImages(ctx context.Context, t *testing.T, version string) {
	t.Helper()
	const supervisor = "/mps-supervisor@"
	want := released(t, version)
	maps.DeleteFunc(want, func(image string, _ bool) bool { return strings.Contains(image, supervisor) })
	for image := range released(t, first) {
		if strings.Contains(image, supervisor) {
			want[image] = true
		}
	}
	must(t, cluster.Eventually(ctx, "the images of "+version+" run", 90*time.Second, func(ctx context.Context) (bool, string) {
		diff := cmp.Diff(want, images(ctx, t))
		return diff == "" && len(want) == 3, diff
	}))
}

func run(ctx context.Context, t *testing.T, name string) []corev1.Pod {
	t.Helper()
	demos, err := cluster.Demos()
	must(t, err)
	for _, d := range demos {
		if d.Name != name {
			continue
		}
		must(t, cluster.Apply(ctx, d))
		t.Cleanup(func() { must(t, cluster.Remove(context.WithoutCancel(ctx), d)) })
		pods, err := cluster.WaitSettled(ctx, d)
		must(t, err)
		return pods
	}
	t.Fatalf("there is no demo %s", name)
	return nil
}

// seen returns the GPUs that the containers of pods see. The pods must be the same, without a restart.
func seen(ctx context.Context, t *testing.T, pods []corev1.Pod) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, p := range pods {
		now, err := cluster.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		must(t, err)
		if now.UID != p.UID || now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Errorf("pod %s is %s, with %+v", p.Name, now.Status.Phase, now.Status.ContainerStatuses)
		}
		view, err := cluster.Inspect(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name)
		must(t, err)
		if found[p.Name] = append(view.GPUs(), view.UUIDs()...); len(view.GPUs()) == 0 {
			t.Errorf("pod %s sees no GPU", p.Name)
		}
	}
	return found
}

// kind is a program that loads an archive as kind does, onto the cluster of this test. The images in the archives have the version of
// the build.
const kind = `#!/bin/bash
set -e
[ "$1 $2" = "load image-archive" ]
"$ONENODE" load --dir "$ONENODE_DIR" "$3"
name=docker.io/gpu-dra-driver/${3%-VERSION-*}
"$ONENODE" exec --dir "$ONENODE_DIR" -- ctr --address /run/containerd/containerd.sock --namespace k8s.io images tag --force $name:BUILT $name:VERSION
`

// TestRelease_NotesWithoutRegistry_PodHasAPartition runs the commands of the notes in the directory of the release. It comes first: a
// kubelet that has pulled an image does not take the same one as loaded.
func TestRelease_NotesWithoutRegistry_PodHasAPartition(t *testing.T) {
	ctx := e2etest.Context(t, 5*time.Minute)
	dir, programs := filepath.Join(cluster.Dir, "release-"+next, "release-"+next), t.TempDir()
	notes, err := os.ReadFile(filepath.Join(dir, "notes.md"))
	must(t, err)
	_, local, _ := strings.Cut(string(notes), "## Without a registry")
	_, local, _ = strings.Cut(local, "```sh\n")
	commands, _, found := strings.Cut(local, "```")
	if !found {
		t.Fatalf("the notes have no commands:\n%s", notes)
	}
	digests, err := os.ReadFile(filepath.Join(cluster.Tree, "dist", "digests-gpu-dra-driver.yaml"))
	must(t, err)
	built, err := builtLast(string(digests))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(programs, "kind"), []byte(strings.NewReplacer("BUILT", built, "VERSION", next).Replace(kind)), 0o755))
	helm, err := cluster.Run(ctx, "hack/tool.sh", "--path", "helm")
	must(t, err)
	must(t, os.Symlink(strings.TrimSpace(helm), filepath.Join(programs, "helm")))
	path := "PATH=" + programs + ":" + filepath.Dir(cluster.KubectlPath) + ":" + os.Getenv("PATH")

	out, err := cluster.Run(ctx, "env", "-C", dir, path, "bash", "-euc", commands)
	if err != nil || !strings.Contains(out, "1g.10gb") || !strings.Contains(out, "MIG-") {
		t.Errorf("%v\n%s", err, out)
	}
	_, err = cluster.Kubectl(ctx, "delete", "pod/part", "resourceclaimtemplate/part")
	must(t, err)
	must(t, cluster.Uninstall(ctx))
	_, err = cluster.Run(ctx, "hack/tool.sh", "helm", "uninstall", "gpu-simulator", "--namespace", "gpu-simulator", "--wait")
	must(t, err)
}

func TestRelease_NextPatchAndBack_KeepsPods(t *testing.T) {
	ctx := e2etest.Context(t, 8*time.Minute)
	must(t, cluster.Step("install "+first, func() error {
		if err := install(ctx, first); err != nil {
			return err
		}
		return cluster.WaitPublished(ctx, 8)
	}))
	waitImages(ctx, t, first)
	pods := append(run(ctx, t, "nvlink-four"), run(ctx, t, "sharing-mps")...)
	before := seen(ctx, t, pods)

	must(t, install(ctx, next))
	waitImages(ctx, t, next)
	if diff := cmp.Diff(before, seen(ctx, t, pods)); diff != "" {
		t.Errorf("after the upgrade (-before +after):\n%s", diff)
	}
	pods = append(pods, run(ctx, t, "mig-one")...)
	before = seen(ctx, t, pods)

	_, err := cluster.Run(ctx, "hack/tool.sh", "helm", "rollback", env.Release, "1", "--namespace", env.Namespace, "--wait", "--timeout", "120s")
	must(t, err)
	waitImages(ctx, t, first)
	if diff := cmp.Diff(before, seen(ctx, t, pods)); diff != "" {
		t.Errorf("after the way back (-before +after):\n%s", diff)
	}
	// Pods of both versions end, and others start.
	seen(ctx, t, run(ctx, t, "one-gpu"))
}
