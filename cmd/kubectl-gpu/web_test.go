// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// browse starts `kubectl gpu web` against an API server whose watches have no events. It returns the URL, and a function
// that interrupts the command and returns its exit code and standard error.
func (e *env) browse(args ...string) (url string, interrupt func() (int, string)) {
	e.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			e.t.Errorf("%s %s: the page writes", r.Method, r.URL)
		}
		if r.URL.Query().Get("watch") == "" {
			e.serve(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	e.t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(e.t.Context())
	read, write := io.Pipe()
	var errOut bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append(args, "--kubeconfig="+kubeconfig(e.t, server.URL)), genericiooptions.IOStreams{In: strings.NewReader(""), Out: write, ErrOut: &errOut})
		_ = write.Close()
	}()
	url, err := bufio.NewReader(read).ReadString('\n')
	interrupt = func() (int, string) {
		cancel()
		return <-code, errOut.String()
	}
	if err != nil {
		_, text := interrupt()
		e.t.Fatalf("no URL: %v: %s", err, text)
	}
	e.t.Cleanup(func() { cancel() })
	return strings.TrimSpace(url), interrupt
}

// lines reads the page's data until the whole cluster is shown.
func lines(t *testing.T, url string) (gpus []map[string]any, notes []any) {
	t.Helper()
	response, err := http.Get(url + "api/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	live := false
	scanner := bufio.NewScanner(response.Body)
	for scanner.Buffer(nil, 1<<24); scanner.Scan(); {
		var line struct {
			Status *struct {
				Reading []string
				Notes   []any
			}
			Node  *struct{ GPUs []map[string]any }
			Shown bool
		}
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		switch {
		case line.Status != nil:
			live, notes = len(line.Status.Reading) == 0, line.Status.Notes
		case line.Node != nil:
			gpus = append(gpus, line.Node.GPUs...)
		case line.Shown && live:
			return gpus, notes
		}
	}
	t.Fatal("the page's data ended:", scanner.Err())
	return nil, nil
}

func TestWeb_Data_EqualsLs(t *testing.T) {
	pending := claim("team-b", "waits")
	pending.Status = resourceapi.ResourceClaimStatus{}
	e := start(t, map[string]string{"n1": "hgx-h100"}, claim("team-a", "train", device("n1", "gpu-0000-1b-00-0-mig-3g-40gb-4")), pending)
	url, interrupt := e.browse("web")
	gpus, notes := lines(t, url)
	_, out, _ := e.kubectl("ls", "-o", "json")
	var ls struct{ Items []map[string]any }
	if err := json.Unmarshal([]byte(out), &ls); err != nil {
		t.Fatal(err)
	}
	for _, g := range gpus {
		for _, key := range []string{"summary", "condition", "fragmented", "free", "remedies"} { // Words of the table.
			delete(g, key)
		}
	}
	for _, g := range ls.Items {
		for _, key := range []string{"apiVersion", "kind", "metadata"} {
			delete(g, key)
		}
	}
	if diff := cmp.Diff(ls.Items, gpus); diff != "" || len(gpus) != perNode {
		t.Errorf("(-kubectl gpu ls -o json, +page):\n%s", diff)
	}
	if len(notes) > 0 {
		t.Errorf("the page notes %v", notes)
	}
	if code, errOut := interrupt(); code != 0 || !strings.Contains(errOut, "Interrupt the command") {
		t.Errorf("after an interrupt: exit code %d, stderr %q", code, errOut)
	}
	if again, err := http.Get(url); err == nil {
		again.Body.Close()
		t.Error("the page is still served after an interrupt")
	}
}

func TestWeb_LessRights_NotesWhatIsMissing(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	e.forbidden[claimsPath], e.forbidden[rulesPath], e.forbidden[classesPath] = true, true, true
	e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims"] = resourceapi.ResourceClaimList{
		Items: []resourceapi.ResourceClaim{claim("team-a", "own", device("n1", "gpu-0000-1b-00-0"))},
	}
	url, _ := e.browse("web")
	gpus, notes := lines(t, url)
	want := []any{
		"You may not list DeviceClasses: pending claims are not shown.",
		"You may not list DeviceTaintRules: DeviceTaintRules are not shown.",
		"You may not list ResourceClaims of all namespaces: only those of namespace team-a are shown, and devices of others look free.",
	}
	if diff := cmp.Diff(want, notes); diff != "" || len(gpus) != perNode || gpus[0]["use"] != "whole" {
		t.Errorf("GPUs %v, notes (-want +got):\n%s", gpus, diff)
	}
}

func TestWeb_Start_FailsWithASentence(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	if code, _, errOut := e.kubectl("web", "--port", "70000"); code != 2 || !strings.Contains(errOut, "is not a port") {
		t.Errorf("exit code %d: %s", code, errOut)
	}
	e.forbidden[slicesPath] = true
	if code, out, errOut := e.kubectl("web"); code != 1 || out != "" || !strings.Contains(errOut, "list ResourceSlices") {
		t.Errorf("exit code %d: %s%s", code, out, errOut)
	}
}

func TestWeb_Why_AnswersLikeTheCommand(t *testing.T) {
	waits := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "waits"}}
	waits.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "missing.example.com"}}}
	e := start(t, map[string]string{"n1": "hgx-h100"}, waits)
	e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/waits"] = waits
	e.lists["/api/v1/nodes"] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}}
	e.forbidden["/api/v1/namespaces/team-a/pods"] = true
	url, _ := e.browse("web")
	response, err := http.Get(url + "api/why?namespace=team-a&name=waits")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	_, out, errOut := e.kubectl("why", "claim/waits", "-o", "json")
	var list struct{ Items []map[string]any }
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Items) != 1 {
		t.Fatalf("%v: %s%s", err, out, errOut)
	}
	for _, key := range []string{"apiVersion", "kind", "metadata"} {
		delete(list.Items[0], key)
	}
	if diff := cmp.Diff(list.Items[0], answer); diff != "" || answer["result"] != "waits" {
		t.Errorf("(-kubectl gpu why, +page):\n%s", diff)
	}
}

func TestWeb_Use_FiguresOrAReason(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*env)
		want   string
	}{
		"measured": {nil, `{"nodes":{"n1":{"gpu-0000-1b-00-0":{"utilization":0.625,"memoryUsedBytes":21474836480},"gpu-0000-43-00-0":{"memoryUsedBytes":0}}}}`},
		"no right to proxy": {func(e *env) { e.forbidden[proxyPath("plugin")] = true },
			`{"missing":{"n1":"you may not get the subresource pods/proxy in namespace system"}}`},
		"no right to pods": {func(e *env) { e.forbidden[podsPath], e.forbidden["/api/v1/namespaces/team-a/pods"] = true, true },
			`{"refused":"you may not list the pods of the driver's plugins"}`},
		"pods of the own namespace": {func(e *env) {
			e.forbidden[podsPath] = true
			e.lists["/api/v1/namespaces/team-a/pods"] = e.lists[podsPath]
		}, `{"nodes":{"n1":{"gpu-0000-1b-00-0":{"utilization":0.625,`},
		"no plugin":   {func(e *env) { e.lists[podsPath] = corev1.PodList{} }, `{"missing":{"n1":"no plugin of the driver runs on the node"}}`},
		"a tenant":    {func(e *env) { e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{tenantPod()}} }, `{"missing":{"n1":"no plugin of the driver runs on the node"}}`},
		"malformed":   {func(e *env) { e.metrics("plugin", "gpu_dra{ 1") }, `{"missing":{"n1":"read the metrics of pod system/plugin`},
		"not numbers": {func(e *env) { e.metrics("plugin", strings.ReplaceAll(measurements, "0.625", "NaN")) }, `{"nodes":{"n1":{"gpu-0000-1b-00-0":{"memoryUsedBytes":21474836480}`},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, map[string]string{"n1": "hgx-h100"})
			e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1")}}
			e.metrics("plugin", measurements)
			if c.change != nil {
				c.change(e)
			}
			url, _ := e.browse("web")
			response, err := http.Get(url + "api/use?node=n1")
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if body, err := io.ReadAll(response.Body); err != nil || !strings.HasPrefix(string(body), c.want) {
				t.Errorf("%v: %s, want %s", err, body, c.want)
			}
		})
	}
}

// TestWeb_Open_CommandLinesLackTheToken has a browser that notes its arguments, and what it finds there.
func TestWeb_Open_CommandLinesLackTheToken(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Fatal("this test has a browser for Linux")
	}
	dir := t.TempDir()
	const browser = "#!/bin/sh\nfor a in \"$@\"; do echo \"$a\"; done >\"$DIR/arguments\"\nstat -c %a \"$1\" >\"$DIR/mode\"\ncat \"$1\" >\"$DIR/content\"\n"
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(browser), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("DIR", dir)
	t.Setenv("TMPDIR", dir)
	url, interrupt := start(t, map[string]string{"n1": "hgx-h100"}).browse("web", "--open")
	lines(t, url) // It is served after the browser ran.
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(content)
	}
	token := path.Base(url)
	if arguments := read("arguments"); strings.Contains(arguments, token) || arguments == "" {
		t.Errorf("the browser's arguments: %s", arguments)
	}
	if mode, content := read("mode"), read("content"); mode != "600\n" || !strings.Contains(content, "url="+url+"\"") {
		t.Errorf("a file of mode %s: %s", mode, content)
	}
	if code, errOut := interrupt(); code != 0 || strings.Contains(errOut, "no browser") {
		t.Errorf("exit code %d, stderr %q", code, errOut)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.html")); err != nil || len(left) > 0 {
		t.Errorf("left files %v, %v", left, err)
	}
}
