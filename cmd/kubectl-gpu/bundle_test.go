// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// unpack returns the names of an archive's files in their order, and their contents.
func unpack(t *testing.T, data []byte) (names []string, contents map[string]string) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	contents = map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(h.Name, "gpu-bundle/")
		names, contents[name] = append(names, name), string(text)
	}
}

// supported is a cluster with everything that an archive holds, except for DaemonSets and what depends on versions.
func supported(t *testing.T) *env {
	e := start(t, map[string]string{"n1": "hgx-h100", "n2": "hgx-h100"}, claim("team-a", "train-0", device("n1", "gpu-0000-1b-00-0")))
	plugin := driverPod("plugin", "kubelet-plugin", "plugin:1")
	plugin.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "PROXY_PASSWORD", Value: "hunter2"}}
	plugin.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "gpus", RestartCount: 1}}
	e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{plugin}}
	e.lists["/api/v1/namespaces/system/pods"] = corev1.PodList{Items: []corev1.Pod{plugin}}
	e.lists["/api/v1/namespaces/system/pods/plugin/log"] = "GPU 0000:1b:00.0 prepared\nAuthorization: Bearer abcdefghijklmnop\n"
	e.metrics("plugin", measurements)
	e.runtime("containerd://2.3.7")
	return e
}

func TestBundle_Cluster_FilesWithoutSecrets(t *testing.T) {
	e := supported(t)
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	code, out, errOut := e.kubectl("bundle", "-f", file)
	if code != 0 || out != "" || !strings.Contains(errOut, "wrote "+file+": 19 files; ") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errOut)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	names, contents := unpack(t, data)
	if diff := cmp.Diff([]string{
		"versions.txt", "doctor.txt", "layout.txt", "ls.txt", "slices.txt", "claims.txt", "top.txt", "top-claims.txt",
		"objects/deviceclasses.yaml", "objects/devicetaintrules.yaml", "objects/resourceclaims.yaml",
		"objects/validatingwebhookconfigurations.yaml", "objects/system/pods.yaml",
		"logs/system/plugin/gpus-previous.log", "logs/system/plugin/gpus.log", "metrics/system/plugin.txt",
		"objects/nodes.yaml", "objects/resourceslices.yaml", "missing.txt",
	}, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for name, text := range map[string]string{
		"versions.txt": "v1.37.1", "doctor.txt": "plugin:1", "layout.txt": "n2: 2 of 2 GPUs free", "claims.txt": "train-0", "objects/resourceclaims.yaml": "name: train-0",
		"logs/system/plugin/gpus.log": "Authorization: Bearer REDACTED", "objects/system/pods.yaml": "value: REDACTED", "metrics/system/plugin.txt": "gpu_dra_",
		"objects/resourceslices.yaml": "gpu-0000-1b-00-0", "missing.txt": "objects/system/daemonsets", "objects/nodes.yaml": "containerd://2.3.7",
	} {
		if !strings.Contains(contents[name], text) {
			t.Errorf("%s lacks %q:\n%.2000s", name, text, contents[name])
		}
	}
	for name, text := range contents {
		for _, secret := range []string{"hunter2", "abcdefghijklmnop"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has the secret %s", name, secret)
			}
		}
	}
	if code, _, errOut := e.kubectl("bundle", "-f", file); code != 1 || !strings.Contains(errOut, "exists") {
		t.Errorf("an existing file: exit code %d, stderr %q", code, errOut)
	}
	if _, out, _ := e.kubectl("bundle", "n2", "-f", "-"); true {
		names, contents := unpack(t, []byte(out))
		if slices.Contains(names, "logs/system/plugin/gpus.log") || strings.Contains(contents["objects/resourceslices.yaml"], "nodeName: n1") {
			t.Errorf("the archive of node n2 has files of n1: %v", names)
		}
	}
}

// TestBundle_TenantsPodAsPlugin_NotCollected has a tenant's pod whose path of metrics leads to a Secret that the user may read.
func TestBundle_TenantsPodAsPlugin_NotCollected(t *testing.T) {
	e := supported(t)
	pod := tenantPod()
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "METRICS_PATH", Value: "../../../../kube-system/secrets/s"}}
	all := e.lists[podsPath].(corev1.PodList)
	e.lists[podsPath] = corev1.PodList{Items: append(all.Items, pod)}
	e.lists["/api/v1/namespaces/kube-system/secrets/s"] = `{"data":{"key":"aHVudGVyMw=="}}`
	_, out, _ := e.kubectl("bundle", "-f", "-")
	names, contents := unpack(t, []byte(out))
	for _, name := range names {
		if strings.Contains(name, "team-a") || strings.Contains(contents[name], "aHVudGVyMw==") {
			t.Errorf("the archive has %s:\n%.300s", name, contents[name])
		}
	}
	if !slices.Contains(names, "metrics/system/plugin.txt") {
		t.Errorf("the archive lacks the plugin's metrics: %v", names)
	}
}

// TestBundle_ChartWithAnotherName_HasItsObjects has a server with a DaemonSet of a chart with the value nameOverride.
func TestBundle_ChartWithAnotherName_HasItsObjects(t *testing.T) {
	e := supported(t)
	for _, path := range []string{podsPath, "/api/v1/namespaces/system/pods"} {
		p := &e.lists[path].(corev1.PodList).Items[0]
		p.Labels["app.kubernetes.io/name"], p.Spec.Containers[0].Image = "gpus", "registry.example.com/dra-kubelet-plugin:1"
	}
	e.lists["/apis/apps/v1/namespaces/system/daemonsets"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		items := ""
		wanted, err := labels.Parse(r.URL.Query().Get("labelSelector"))
		if err == nil && wanted.Matches(labels.Set{"app.kubernetes.io/name": "gpus"}) {
			items = `{"kind":"DaemonSet","apiVersion":"apps/v1","metadata":{"name":"gpus-kubelet-plugin"}}`
		}
		_, _ = io.WriteString(w, `{"kind":"DaemonSetList","apiVersion":"apps/v1","items":[`+items+`]}`)
	})
	_, out, _ := e.kubectl("bundle", "-f", "-")
	if _, contents := unpack(t, []byte(out)); !strings.Contains(contents["objects/system/daemonsets.yaml"], "gpus-kubelet-plugin") {
		t.Errorf("the archive lacks the DaemonSet:\n%s", contents["objects/system/daemonsets.yaml"])
	}
}

func TestBundle_SomethingMissing_IsListed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*env)
		args   []string
		says   string
	}{
		"no right to slices": {func(e *env) { e.forbidden[slicesPath] = true }, nil, "ResourceSlices"},
		"no right to claims": {func(e *env) { e.forbidden[claimsPath] = true }, nil, "ResourceClaims"},
		"no log":             {func(e *env) { delete(e.lists, "/api/v1/namespaces/system/pods/plugin/log") }, nil, "logs/system/plugin/gpus.log: "},
		"no metrics":         {func(e *env) { delete(e.lists, proxyPath("plugin")) }, nil, "metrics/system/plugin.txt: "},
		"full":               {func(*env) {}, []string{"--max-size=20Ki"}, "the archive is full"},
	} {
		t.Run(name, func(t *testing.T) {
			e := supported(t)
			c.change(e)
			code, out, errOut := e.kubectl(append([]string{"bundle", "-f", "-"}, c.args...)...)
			if code != 0 || !strings.Contains(errOut, "are missing, see missing.txt") {
				t.Fatalf("exit code %d, stderr %q", code, errOut)
			}
			if _, contents := unpack(t, []byte(out)); !strings.Contains(contents["missing.txt"], c.says) {
				t.Errorf("missing.txt lacks %q:\n%s", c.says, contents["missing.txt"])
			}
		})
	}
}

func TestBundle_BadInput_NoFile(t *testing.T) {
	e := supported(t)
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	delete(e.lists, "/version")
	if code, _, errOut := e.kubectl("bundle", "-f", file); code != 1 || !strings.Contains(errOut, "read the version of the API server") {
		t.Errorf("exit code %d, stderr %q", code, errOut)
	}
	if code, _, errOut := e.kubectl("bundle", "--max-size=lots"); code != 2 || !strings.Contains(errOut, "--max-size=lots") {
		t.Errorf("exit code %d, stderr %q", code, errOut)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file without content is left")
	}
}
