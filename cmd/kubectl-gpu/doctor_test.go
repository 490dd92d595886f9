// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// onWrite is called with each text that is written.
type onWrite func(text string)

func (do onWrite) Write(p []byte) (int, error) {
	do(string(p))
	return len(p), nil
}

// TestDoctor_Watch_PrintsChangesOnly has a cluster in which a GPU breaks after the third check, the API server fails after the
// fifth, and the user leaves after the seventh.
func TestDoctor_Watch_PrintsChangesOnly(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1"), driverPod("controller", "controller", "controller:1")}}
	e.runtime("containerd://2.3.7")
	e.metrics("plugin", "gpu_dra_nvidia_driver_loaded 1\n")
	e.metrics("controller", "gpu_dra_cluster_nodes 1\n")
	ctx, leave := context.WithTimeout(t.Context(), time.Minute)
	defer leave()
	checks := 0
	e.lists["/version"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch checks++; checks { // It is read last.
		case 3:
			e.taint("gpu-0000-1b-00-0", "xid-48")
		case 5:
			delete(e.lists, nodesPath)
		case 7:
			leave()
		}
		_, _ = io.WriteString(w, `{"gitVersion":"v1.37.1"}`)
	})
	var out, errOut bytes.Buffer
	code := run(ctx, []string{"doctor", "--watch", "--interval=1ms", "--kubeconfig=" + e.kubeconfig}, genericiooptions.IOStreams{
		In: strings.NewReader(""), Out: &out, ErrOut: onWrite(func(text string) {
			errOut.WriteString(text)
			e.runtime("containerd://2.3.7")
		}),
	})
	if ctx.Err() == context.DeadlineExceeded || code != 1 {
		t.Errorf("exit code %d after %d checks, %v", code, checks, ctx.Err())
	}
	if n := strings.Count(out.String(), "findings"); n != 3 || strings.Count(out.String(), "1 warning") != 2 || strings.Index(out.String(), "1 warning") < strings.Index(out.String(), "well") {
		t.Errorf("not one report without a warning and two with one:\n%s", &out)
	}
	if text := errOut.String(); strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "not checked: ") || !strings.Contains(text, "was not found") {
		t.Errorf("the errors are %q", text)
	}
}

// TestDoctor_NamespacesHaveAdminAccess_NamesThem has two such namespaces, and then a user who may not list namespaces.
func TestDoctor_NamespacesHaveAdminAccess_NamesThem(t *testing.T) {
	const path = "/api/v1/namespaces"
	e := start(t, map[string]string{"n1": "l40s-4"})
	e.lists[nodesPath], e.lists[podsPath] = corev1.NodeList{}, corev1.PodList{}
	selector := ""
	e.lists[path] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		selector = r.URL.Query().Get("labelSelector")
		_, _ = io.WriteString(w, `{"kind":"NamespaceList","apiVersion":"v1","items":[{"metadata":{"name":"monitoring"}},{"metadata":{"name":"team-a"}}]}`)
	})
	if _, out, errOut := e.kubectl("doctor"); selector != "resource.kubernetes.io/admin-access=true" ||
		!strings.Contains(out, "namespace monitoring, namespace team-a") || !strings.Contains(out, "policies.adminAccessNamespaces") {
		t.Errorf("with the selector %q:\n%s%s", selector, out, errOut)
	}
	e.forbidden[path] = true
	if code, out, errOut := e.kubectl("doctor"); code == 0 || !strings.Contains(out, "Namespaces") || strings.Contains(out, "adminAccessNamespaces") {
		t.Errorf("without the right, exit code %d:\n%s%s", code, out, errOut)
	}
}

func TestDoctor_WatchOfAnotherFormat_Refused(t *testing.T) {
	e := start(t, nil)
	for _, flags := range [][]string{{"-o", "json"}, {"--interval=0"}} {
		if code, out, errOut := e.kubectl(append([]string{"doctor", "-w"}, flags...)...); code != 2 || out != "" || !strings.HasPrefix(errOut, "error: --") {
			t.Errorf("%v: exit code %d, %q, %q", flags, code, out, errOut)
		}
	}
}

func TestAges_OlderFinding_IsTheSame(t *testing.T) {
	if a, b := "oldest for 59s, 2g.20gb", "oldest for 1m5s, 2g.20gb"; ages.ReplaceAllString(a, "") != ages.ReplaceAllString(b, "") {
		t.Errorf("%q and %q differ", ages.ReplaceAllString(a, ""), ages.ReplaceAllString(b, ""))
	}
	if a := "1 of 2 GPUs, 2g.20gb"; ages.ReplaceAllString(a, "") != a {
		t.Errorf("%q has an age", a)
	}
}
