// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// env is an API server with fixed answers, and a kubeconfig for it.
type env struct {
	t testing.TB
	// lists are the answers by path. Other paths answer 404, and paths in forbidden 403.
	lists      map[string]any
	forbidden  map[string]bool
	kubeconfig string
	// rules are the DeviceTaintRules, by name.
	rules map[string]map[string]any
	// boards are the simulated boards of nodes.
	boards map[string]string
	// annotations are the nodes' annotations, by name. Requests with dryRun do not change them.
	annotations map[string]map[string]string
	// noPlugin means that no plugin taints the devices of cordoned GPUs. noTaints means that the server drops taints, so that
	// the plugin withdraws the devices.
	noPlugin, noTaints bool
	// failWrites lets changes fail after so many; 0 is never.
	failWrites, writes int
	// onNode answers requests of single nodes, if it is set.
	onNode http.HandlerFunc
	// partial is the number of answers without a slice of node n1, as while its plugin publishes.
	partial int
}

const (
	slicesPath  = "/apis/resource.k8s.io/v1/resourceslices"
	claimsPath  = "/apis/resource.k8s.io/v1/resourceclaims"
	classesPath = "/apis/resource.k8s.io/v1/deviceclasses"
	rulesPath   = "/apis/resource.k8s.io/v1/devicetaintrules"
	nodesPath   = "/api/v1/nodes"
	hooksPath   = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	podsPath    = "/api/v1/pods"
)

// perNode is the number of GPUs of each node.
const perNode = 2

// start returns an API server with nodes of simulated boards, by node name.
func start(t testing.TB, boards map[string]string, claims ...resourceapi.ResourceClaim) *env {
	t.Helper()
	var all resourceapi.ResourceSliceList
	for node, board := range boards {
		published, err := slicetest.Node(board, node, perNode)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range published {
			all.Items = append(all.Items, *s)
		}
	}
	e := &env{t: t, boards: boards, forbidden: map[string]bool{}, rules: map[string]map[string]any{}, annotations: map[string]map[string]string{}, lists: map[string]any{
		slicesPath: all, claimsPath: resourceapi.ResourceClaimList{Items: claims}, rulesPath: nil,
		classesPath: resourceapi.DeviceClassList{Items: []resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: slicetest.Driver}}}},
		hooksPath:   admissionv1.ValidatingWebhookConfigurationList{},
		nodesPath:   corev1.NodeList{}, podsPath: corev1.PodList{},
		"/version": `{"gitVersion":"v1.37.1"}`,
	}}
	server := httptest.NewServer(http.HandlerFunc(e.serve))
	t.Cleanup(server.Close)
	e.kubeconfig = kubeconfig(t, server.URL)
	return e
}

func (e *env) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if name, ok := strings.CutPrefix(r.URL.Path, nodesPath+"/"); ok && !e.forbidden[r.URL.Path] {
		if e.onNode != nil {
			e.onNode(w, r)
			return
		}
		e.node(w, r, name)
		return
	}
	list, ok := e.lists[r.URL.Path]
	if !ok || e.forbidden[r.URL.Path] {
		status := metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 404, Reason: metav1.StatusReasonNotFound,
			Message: r.URL.Path + " was not found",
		}
		if e.forbidden[r.URL.Path] {
			status.Code, status.Reason, status.Message = 403, metav1.StatusReasonForbidden, "it is forbidden"
		}
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(status)
		return
	}
	switch l := list.(type) {
	case string:
		_, _ = io.WriteString(w, l)
		return
	case http.HandlerFunc:
		l(w, r)
		return
	case resourceapi.ResourceSliceList:
		l.TypeMeta = metav1.TypeMeta{Kind: "ResourceSliceList", APIVersion: "resource.k8s.io/v1"}
		if e.partial > 0 {
			e.partial--
			at := slices.IndexFunc(l.Items, func(s resourceapi.ResourceSlice) bool {
				return len(s.Spec.SharedCounters) > 0 && *s.Spec.NodeName == "n1"
			})
			l.Items = slices.Delete(slices.Clone(l.Items), at, at+1)
		}
		list = l
	case resourceapi.DeviceClassList:
		l.TypeMeta = metav1.TypeMeta{Kind: "DeviceClassList", APIVersion: "resource.k8s.io/v1"}
		list = l
	case corev1.PodList:
		l.TypeMeta = metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}
		list = l
	case admissionv1.ValidatingWebhookConfigurationList:
		l.TypeMeta = metav1.TypeMeta{Kind: "ValidatingWebhookConfigurationList", APIVersion: "admissionregistration.k8s.io/v1"}
		list = l
	case corev1.EventList:
		l.TypeMeta = metav1.TypeMeta{Kind: "EventList", APIVersion: "v1"}
		list = l
	case corev1.NodeList:
		l.TypeMeta = metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}
		list = l
	case nil:
		items := []any{}
		for _, name := range slices.Sorted(maps.Keys(e.rules)) {
			items = append(items, e.rules[name])
		}
		list = map[string]any{"kind": "DeviceTaintRuleList", "apiVersion": "resource.k8s.io/v1", "items": items}
	case resourceapi.ResourceClaimList:
		l.TypeMeta = metav1.TypeMeta{Kind: "ResourceClaimList", APIVersion: "resource.k8s.io/v1"}
		list = l
	}
	_ = json.NewEncoder(w).Encode(list)
}

// node returns a node, or patches its annotations. The plugin follows at once.
func (e *env) node(w http.ResponseWriter, r *http.Request, name string) {
	now := maps.Clone(e.annotations[name])
	if r.Method == http.MethodPatch {
		e.writes++
		if e.failWrites > 0 && e.writes > e.failWrites {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		var patch struct {
			Metadata struct{ Annotations map[string]*string }
		}
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			e.t.Error(err)
		}
		if now == nil {
			now = map[string]string{}
		}
		for key, value := range patch.Metadata.Annotations {
			if value == nil {
				delete(now, key)
			} else {
				now[key] = *value
			}
		}
		if r.URL.Query().Get("dryRun") == "" {
			e.annotations[name] = now
			e.publish(name)
		}
	}
	_ = json.NewEncoder(w).Encode(corev1.Node{
		TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: now},
	})
}

// publish builds the slices of a node again, with its cordons.
func (e *env) publish(node string) {
	cordons, err := wire.ParseCordons(slicetest.Driver, e.annotations[node])
	if err != nil {
		e.t.Error(err)
	}
	if e.noPlugin {
		return
	}
	snapshot, err := slicetest.Scan(e.boards[node], node, perNode)
	if err != nil {
		e.t.Error(err)
		return
	}
	published := slicetest.Slices(snapshot, node, sharing.Settings{}, func(o *resourceslices.Options) {
		o.Cordons, o.Taints = cordons, !e.noTaints
	})
	all := e.lists[slicesPath].(resourceapi.ResourceSliceList)
	all.Items = slices.DeleteFunc(all.Items, func(s resourceapi.ResourceSlice) bool { return *s.Spec.NodeName == node })
	for _, s := range published {
		all.Items = append(all.Items, *s)
	}
	e.lists[slicesPath] = all
}

func kubeconfig(t testing.TB, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + server +
		`"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u","namespace":"team-a"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// driverPod returns a pod of the driver on node n1, with metrics.
func driverPod(name, component, image string) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: name, Labels: map[string]string{
			"app.kubernetes.io/name": "gpu-dra-driver", "app.kubernetes.io/component": component,
		}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{
			Name: "gpus", Image: image, Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8080}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if component == "kubelet-plugin" {
		p.Spec.HostPID = true
		p.Spec.Volumes = []corev1.Volume{{Name: "registrar", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins_registry"},
		}}}
	}
	return p
}

// tenantPod returns a pod with the labels and the image of the plugin, but without its parts of the node.
func tenantPod() corev1.Pod {
	p := driverPod("tenant", "kubelet-plugin", "registry.example.com/dra-kubelet-plugin")
	p.Namespace, p.CreationTimestamp, p.Spec.HostPID, p.Spec.Volumes = "team-a", metav1.Unix(1e9, 0), false, nil
	return p
}

func proxyPath(pod string) string {
	return "/api/v1/namespaces/system/pods/http:" + pod + ":8080/proxy/metrics"
}

// metrics lets a pod of the driver serve metrics.
func (e *env) metrics(pod, text string) { e.lists[proxyPath(pod)] = text }

// uuid returns the UUID of a GPU of node n1 by its slices.
func (e *env) uuid(device string) string {
	e.t.Helper()
	for _, s := range e.lists[slicesPath].(resourceapi.ResourceSliceList).Items {
		for _, d := range s.Spec.Devices {
			if uuid := d.Attributes["uuid"].StringValue; d.Name == device && uuid != nil {
				return *uuid
			}
		}
	}
	e.t.Fatalf("no slice has %s", device)
	return ""
}

// webhooks installs the chart's webhook, another program's, and sets the policy for a controller that is away.
func (e *env) webhooks(policy admissionv1.FailurePolicyType) {
	e.lists[hooksPath] = admissionv1.ValidatingWebhookConfigurationList{Items: []admissionv1.ValidatingWebhookConfiguration{
		{Webhooks: []admissionv1.ValidatingWebhook{{Name: "parameters." + slicetest.Driver, FailurePolicy: &policy}, {Name: "policy.example.com"}}},
	}}
}

// taint marks the devices of a GPU as unhealthy.
func (e *env) taint(gpu, value string) {
	all := e.lists[slicesPath].(resourceapi.ResourceSliceList)
	for _, s := range all.Items {
		for i := range s.Spec.Devices {
			if d := &s.Spec.Devices[i]; strings.HasPrefix(d.Name, gpu) {
				d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: wire.UnhealthyTaint, Value: value, Effect: "NoSchedule"})
			}
		}
	}
}

func unready(p corev1.Pod) corev1.Pod {
	p.Status.Conditions = nil
	return p
}

// runtime sets the container runtime of node n1.
func (e *env) runtime(version string) {
	e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		NodeInfo: corev1.NodeSystemInfo{ContainerRuntimeVersion: version, KubeletVersion: "v1.37.1"},
	}}}}
}

// kubectl runs the plugin.
func (e *env) kubectl(args ...string) (code int, stdout, stderr string) {
	e.t.Helper()
	var out, errOut bytes.Buffer
	code = run(e.t.Context(), append(args, "--kubeconfig="+e.kubeconfig), genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut})
	return code, out.String(), errOut.String()
}

// claim returns an allocated claim of a pod with the claim's name.
func claim(namespace, name string, results ...resourceapi.DeviceRequestAllocationResult) resourceapi.ResourceClaim {
	c := resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Status: resourceapi.ResourceClaimStatus{
			Allocation:  &resourceapi.AllocationResult{},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: "1"}},
		},
	}
	c.Status.Allocation.Devices.Results = results
	return c
}

func device(node, name string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: slicetest.Driver, Pool: node + "/gpu", Device: name}
}

func TestLs_Formats_PrintGPUs(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"}, claim("team-a", "train-0", device("n1", "gpu-0000-1b-00-0-mig-1g-10gb-0")))
	for format, want := range map[string]string{
		"table": "NODE   GPU                MODEL            MEMORY    USE           HEALTH   HOLDERS\n" +
			"n1     gpu-0000-1b-00-0   H100 80GB HBM3   81559Mi   1 partition   ok       team-a/train-0\n" +
			"n1     gpu-0000-43-00-0   H100 80GB HBM3   81559Mi   free          ok       -\n",
		"name": "gpu.cli.gpu.nvidia.com/n1/gpu-0000-1b-00-0\n",
		`jsonpath={.items[0].freeSlices}{" "}{.items[0].allocations[0].claim.name}`: "7 train-0",
		"yaml": "use: cut",
		"json": `"use": "free"`,
		"wide": "7/8           43%          GPU-",
	} {
		code, out, errOut := e.kubectl("ls", "-o", format)
		if code != 0 || !strings.Contains(out, want) || errOut != "" {
			t.Errorf("-o %s: exit code %d, stderr %q, stdout:\n%s", format, code, errOut, out)
		}
	}
}

func TestRun_BadInput_SentenceAndExitCode(t *testing.T) {
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hangs.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	good := start(t, map[string]string{"n1": "hgx-h100"})
	blind := start(t, map[string]string{"n1": "hgx-h100"})
	blind.forbidden[slicesPath] = true
	blind.lists[nodesPath], blind.lists[podsPath] = corev1.NodeList{}, corev1.PodList{}
	old := start(t, nil)
	delete(old.lists, slicesPath)
	at := func(url string) *env { return &env{t: t, kubeconfig: kubeconfig(t, url)} }
	for name, c := range map[string]struct {
		env    *env
		args   []string
		code   int
		stderr string
	}{
		"server hangs":          {at(hangs.URL), []string{"ls", "--request-timeout=100ms"}, 1, "did not answer in time"},
		"no server":             {at(closed.URL), []string{"ls"}, 1, "no API server listens there"},
		"no kubeconfig":         {&env{t: t, kubeconfig: "/nonexistent"}, []string{"ls"}, 1, "kubeconfig"},
		"no such context":       {good, []string{"ls", "--context=absent"}, 1, "absent"},
		"no right to slices":    {blind, []string{"slices"}, 1, "ResourceSlices"},
		"cordon without slices": {blind, []string{"cordon", "n1/gpu-0000-1b-00-0"}, 1, "ResourceSlices"},
		"pack without slices":   {blind, []string{"pack", "--for", "4"}, 1, "ResourceSlices"},
		"ls without slices":     {blind, []string{"ls"}, 0, "No claim that was read has a GPU of driver gpu.nvidia.com; GPUs without claims are not known."},
		"node without slices":   {blind, []string{"ls", "n1"}, 1, "no claim has a GPU of it, and its ResourceSlices were not read"},
		"quota without slices":  {blind, []string{"quota", "-A"}, 0, "the use of namespaces without one is not known"},
		"old server":            {old, []string{"ls"}, 1, "Kubernetes 1.34"},
		"no such command":       {good, []string{"frobnicate"}, 2, "frobnicate"},
		"no such flag":          {good, []string{"ls", "--frobnicate"}, 2, "frobnicate"},
		"no such format":        {good, []string{"ls", "-o", "xml"}, 2, "xml"},
		"no such node":          {good, []string{"ls", "ñandú"}, 1, "ñandú"},
		"timeout without unit":  {good, []string{"ls", "--request-timeout=soon"}, 2, "timeout"},
		"cordon nothing":        {good, []string{"cordon"}, 2, "a device is missing"},
		"cordon unknown GPU":    {good, []string{"cordon", "n1/gpu-0000-ff-00-0"}, 1, "publishes no device"},
		"cordon Unicode":        {good, []string{"cordon", "n1/gpü"}, 1, "does not belong"},
		"driver without GPUs":   {good, []string{"ls", "--driver-name=other.example.com"}, 0, "No GPUs"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := c.env.kubectl(c.args...)
			if code != c.code || !strings.Contains(errOut, c.stderr) || strings.Contains(errOut, "goroutine") || out != "" {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errOut)
			}
		})
	}
}

func TestLs_RightsMissing_ShowsTheRest(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	e.forbidden[claimsPath] = true
	e.forbidden["/apis/resource.k8s.io/v1/devicetaintrules"] = true
	e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims"] = resourceapi.ResourceClaimList{Items: []resourceapi.ResourceClaim{
		claim("team-a", "mine", device("n1", "gpu-0000-43-00-0")),
	}}
	code, out, errOut := e.kubectl("ls")
	if code != 0 || !strings.Contains(out, "team-a/mine") {
		t.Errorf("exit code %d, stdout:\n%s", code, out)
	}
	for _, note := range []string{"only those of namespace team-a are shown", "may not list DeviceTaintRules"} {
		if !strings.Contains(errOut, note) {
			t.Errorf("stderr lacks %q: %q", note, errOut)
		}
	}
}

// TestRun_NoRightToSlices_ShowsTheClaims has a user of `view` without the chart's ClusterRole.
func TestRun_NoRightToSlices_ShowsTheClaims(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		out  string
		not  []string
	}{
		"ls":     {[]string{"ls"}, "n1     gpu-0000-43-00-0   -       -        unread   unknown   team-a/mine", []string{"unpublished", " ok "}},
		"layout": {[]string{"layout"}, "team-a/mine", []string{"unpublished"}},
		"claims": {[]string{"claims", "-A"}, "mine", []string{"gpu-0000-43-00-0!"}},
		"pods":   {[]string{"ls", "pods", "-A"}, "mine", nil},
		"doctor": {[]string{"doctor"}, "not checked   ResourceSlices   you may not list them in all namespaces, so these were not looked at: the GPUs of nodes",
			[]string{"no node publishes", "no slice publishes", "GPUs cannot be shared", "cannot share", "slices exist", "0 GPUs", "1 GPUs"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, map[string]string{"n1": "hgx-h100"}, claim("team-a", "mine", device("n1", "gpu-0000-43-00-0")))
			e.forbidden[slicesPath] = true
			e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}}
			e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1"), driverPod("controller", "controller", "controller:1")}}
			_, out, errOut := e.kubectl(c.args...)
			if !strings.Contains(out, c.out) || !strings.Contains(errOut, "note: you may not list ResourceSlices: only GPUs that claims have are shown") {
				t.Errorf("stderr %q, stdout:\n%s", errOut, out)
			}
			for _, text := range c.not {
				if strings.Contains(out, text) {
					t.Errorf("%q in\n%s", text, out)
				}
			}
		})
	}
}

func TestClaims_ReservedForPodGroup_PodGroupIsShown(t *testing.T) {
	gang := claim("team-a", "gang", device("n1", "gpu-0000-1b-00-0"))
	gang.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
		{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "workers", UID: "1"},
	}
	other := claim("team-a", "other", device("n1", "gpu-0000-43-00-0"))
	other.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{APIGroup: "example.com", Resource: "podgroups", Name: "others", UID: "2"}}
	e := start(t, map[string]string{"n1": "hgx-h100"}, gang, other)
	for _, c := range []struct{ args, want string }{
		{"claims -A", "podgroup/workers"},
		{"ls pods -A", "podgroup/workers"},
		{"layout", "team-a/gang (podgroup/workers)"},
		{"drain n1/gpu-0000-1b-00-0 --dry-run=server", "would evict the pods of team-a/podgroup/workers (claim gang, "},
	} {
		code, out, errOut := e.kubectl(strings.Fields(c.args)...)
		if code != 0 || !strings.Contains(out, c.want) || strings.Contains(out, "others") || errOut != "" {
			t.Errorf("%s: exit code %d, stderr %q, stdout:\n%s", c.args, code, errOut, out)
		}
	}
}

// TestCordon_GPU_TaintsPartitionsAndGroupsUntilUncordon has a plugin that follows the annotation.
func TestCordon_GPU_TaintsPartitionsAndGroupsUntilUncordon(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100", "n2": "hgx-h100"},
		claim("team-a", "train-0", device("n1", "gpu-0000-1b-00-0-mig-1g-10gb-0")),
		claim("team-b", "other", device("n2", "gpu-0000-1b-00-0-mig-1g-10gb-0")))
	must := func(args ...string) string {
		t.Helper()
		code, out, errOut := e.kubectl(args...)
		if code != 0 || errOut != "" {
			t.Fatalf("%v: exit code %d, stderr %q", args, code, errOut)
		}
		return out
	}
	const first, second = "n1/gpu-0000-1b-00-0", "n1/gpu-0000-43-00-0"
	if out := must("drain", first, "--dry-run=server"); !strings.Contains(out, "would evict pod team-a/train-0 (") || strings.Contains(out, "team-b") || len(e.annotations["n1"]) > 0 {
		t.Errorf("dry run wrote %v: %s", e.annotations, out)
	}
	must("cordon", first+"-mig-2g-20gb-2") // A partition stands for its GPU.
	if out := must("drain", second); !strings.Contains(out, "drained") || strings.Contains(out, "evicts") {
		t.Errorf("drain of a free GPU: %s", out)
	}
	for _, s := range e.lists[slicesPath].(resourceapi.ResourceSliceList).Items {
		for _, d := range s.Spec.Devices {
			want := map[string]string{"gpu-0000-1b-00-0": "NoSchedule", "gpu-0000-43-00-0": "NoExecute", "nvlink-2-0000-1b-00-0": "NoExecute"}
			if *s.Spec.NodeName == "n2" || strings.HasPrefix(d.Name, "monitor") {
				want = nil
			}
			whole, _, _ := strings.Cut(d.Name, "-mig")
			if got := cordonOf(d); got != want[whole] {
				t.Errorf("device %s of pool %s has the cordon %q, want %q", d.Name, s.Spec.Pool.Name, got, want[whole])
			}
		}
	}
	if out := must("ls", "n1"); strings.Count(out, "cordoned") != 1 || strings.Count(out, "drained") != 1 {
		t.Errorf("cordoned GPUs are not marked once each:\n%s", out)
	}
	if out := must("ls", "n1", "-o", "wide"); strings.Contains(out, "100%") {
		t.Errorf("a cordoned GPU without claims is fragmented:\n%s", out)
	}
	if out := must("uncordon", first); !strings.Contains(out, "uncordoned") || strings.Contains(must("ls"), "cordoned") {
		t.Errorf("uncordon of one GPU of two: %s", out)
	}
	if must("uncordon", second); len(e.annotations["n1"]) > 0 {
		t.Errorf("annotations are left: %v", e.annotations)
	}
	if out := must("uncordon", second); !strings.Contains(out, "was not cordoned") {
		t.Errorf("second uncordon: %s", out)
	}
	e.failWrites = e.writes
	e.writes++
	if code, _, errOut := e.kubectl("cordon", first); code != 1 || !strings.Contains(errOut, "annotate node n1 of GPU gpu-0000-1b-00-0") {
		t.Errorf("API server fails: exit code %d, stderr %q", code, errOut)
	}
}

func cordonOf(d resourceapi.Device) string {
	for _, taint := range d.Taints {
		if taint.Key == wire.CordonTaint {
			return string(taint.Effect)
		}
	}
	return ""
}

// TestCordon_ServerWithoutTaints_DevicesGoAndComeBack: `uncordon` finds a GPU that no slice has.
func TestCordon_ServerWithoutTaints_DevicesGoAndComeBack(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	e.noTaints = true
	const name = "n1/gpu-0000-1b-00-0"
	for _, step := range []struct {
		command string
		listed  bool
	}{{"cordon", false}, {"uncordon", true}, {"drain", false}, {"uncordon", true}} {
		code, out, errOut := e.kubectl(step.command, name)
		if code != 0 || errOut != "" {
			t.Fatalf("%s: exit code %d, stderr %q, stdout %q", step.command, code, errOut, out)
		}
		if _, out, _ := e.kubectl("ls"); strings.Contains(out, "gpu-0000-1b-00-0") != step.listed || !strings.Contains(out, "gpu-0000-43-00-0") {
			t.Errorf("after %s:\n%s", step.command, out)
		}
	}
}

// TestCordon_NoPlugin_SaysThatClaimsGetTheGPU has slices of a plugin that does not run.
func TestCordon_NoPlugin_SaysThatClaimsGetTheGPU(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	e.noPlugin = true
	synced := followLimit
	followLimit = time.Second
	t.Cleanup(func() { followLimit = synced })
	if code, out, errOut := e.kubectl("cordon", "n1/gpu-0000-1b-00-0"); code != 1 || out != "" || !strings.Contains(errOut, "claims can still get") {
		t.Errorf("exit code %d, stderr %q, stdout %q", code, errOut, out)
	}
	if len(e.annotations["n1"]) != 1 {
		t.Errorf("annotations %v", e.annotations)
	}
}

func TestDoctor_States_FindingsAndExitCode(t *testing.T) {
	healthy := []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1"), driverPod("controller", "controller", "controller:1")}
	exporter := func(name string) corev1.Pod {
		p := driverPod(name, "", "nvcr.io/nvidia/k8s/dcgm-exporter:4")
		p.Labels = nil
		return p
	}
	for name, c := range map[string]struct {
		change func(*env)
		claims []resourceapi.ResourceClaim
		pods   []corev1.Pod
		code   int
		says   string
	}{
		"all is well":               {nil, nil, healthy, 0, "plugin:1"},
		"no plugin":                 {nil, nil, healthy[1:], 2, "no plugin runs here"},
		"no controller, no webhook": {nil, nil, healthy[:1], 1, "no pod of the controller exists: no webhook reviews claims"},
		"no controller": {func(e *env) { e.webhooks("Fail") }, nil, healthy[:1], 2,
			"no pod of the controller exists: the API server refuses objects that the webhooks parameters.gpu.nvidia.com review, such as claims with this driver's parameters"},
		"no controller, webhook that is ignored": {func(e *env) { e.webhooks("Ignore") }, nil, healthy[:1], 1, "claims are created without a review (failurePolicy Ignore)"},
		"no controller, no right to webhooks": {func(e *env) { e.forbidden[hooksPath] = true }, nil, healthy[:1], 2,
			"the API server refuses claims with this driver's parameters, unless the chart value webhook.failurePolicy is Ignore"},
		"controller not ready": {func(e *env) { e.webhooks("Fail") }, nil, []corev1.Pod{healthy[0], unready(healthy[1])}, 2,
			"none of 1 pods is ready (system/controller): the API server refuses objects"},
		"webhook not tested": {func(e *env) {
			e.webhooks("Fail")
			e.metrics("controller", "gpu_dra_cluster_nodes 1\n")
		}, nil, healthy, 1, "whether the API server reaches the webhook was not tested yet"},
		"webhook, no right to the proxy": {func(e *env) {
			e.webhooks("Fail")
			e.forbidden[proxyPath("controller")] = true
		}, nil, healthy, 1, "whether the API server reaches the webhook was not read: you may not get the subresource pods/proxy"},
		"driver unloaded, nothing published": {func(e *env) {
			e.lists[slicesPath] = resourceapi.ResourceSliceList{}
			e.metrics("plugin", "gpu_dra_nvidia_driver_loaded 0\n")
		}, nil, healthy, 2, "the plugin system/plugin runs, but publishes no GPU. No NVIDIA driver is loaded. If the node has a GPU: load the driver"},
		"driver unloaded under a claim": {func(e *env) {
			e.metrics("plugin", "gpu_dra_nvidia_driver_loaded 0\n")
		}, []resourceapi.ResourceClaim{claim("a", "b", device("n1", "gpu-0000-1b-00-0"))}, healthy, 2, "no NVIDIA driver is loaded: the slices keep only GPUs that claims have"},
		"no GPU, driver loaded": {func(e *env) {
			e.lists[slicesPath] = resourceapi.ResourceSliceList{}
			e.metrics("plugin", "gpu_dra_nvidia_driver_loaded 1\n")
		}, nil, healthy, 2, "NVIDIA's driver is loaded. If the node has a GPU: kubectl -n system logs plugin"},
		"plugin and slices gone": {func(e *env) {
			e.lists[slicesPath] = resourceapi.ResourceSliceList{}
		}, []resourceapi.ResourceClaim{claim("a", "b", device("n1", "gpu-0000-1b-00-0"))}, healthy[1:], 2,
			"no plugin runs here, and the node has no slices, but claims have 1 of its GPUs: their pods cannot end. Start the plugin"},
		"lost GPU under a pod": {func(e *env) { e.taint("gpu-0000-43-00-0", "lost") },
			[]resourceapi.ResourceClaim{claim("a", "b", device("n1", "gpu-0000-43-00-0"))}, healthy, 2,
			"problem   n1/gpu-0000-43-00-0   unhealthy: lost: the GPU has fallen off the bus. Claims that have it: a/b. To recover: drain the node"},
		"lost GPU that is free": {func(e *env) { e.taint("gpu-0000-43-00-0", "lost") }, nil, healthy, 1, "warning   n1/gpu-0000-43-00-0   unhealthy: lost"},
		"lost GPU that is withdrawn": {func(e *env) {
			e.metrics("plugin", `gpu_dra_gpu_info{node="n1",device="gpu-0000-61-00-0",uuid="GPU-gone",model=""} 1`+"\n"+`gpu_dra_device_health{uuid="GPU-gone",state="lost"} 1`+"\n")
		}, nil, healthy, 1, "warning   n1/gpu-0000-61-00-0   unhealthy: lost: the GPU has fallen off the bus. No slice has GPU GPU-gone, so new claims cannot get it. To recover: drain the node"},
		"GPU to reset":         {func(e *env) { e.taint("gpu-0000-43-00-0", "reset") }, nil, healthy, 1, "run on the node: nvidia-smi -r -i 0000:43:00.0"},
		"absent GPU":           {func(e *env) { e.taint("gpu-0000-43-00-0", "absent") }, nil, healthy, 1, "NVIDIA's driver no longer lists it"},
		"two exporters":        {nil, nil, append(slices.Clone(healthy), exporter("a"), exporter("b")), 1, "system/a, system/b"},
		"claim without pod":    {nil, []resourceapi.ResourceClaim{{ObjectMeta: metav1.ObjectMeta{Name: "leak"}, Status: resourceapi.ResourceClaimStatus{Allocation: claim("", "", device("n1", "gpu-0000-1b-00-0")).Status.Allocation}}}, healthy, 1, "no pod uses them"},
		"device not published": {nil, []resourceapi.ResourceClaim{claim("a", "b", device("n1", "gpu-0000-ff-00-0"))}, healthy, 2, "no slice publishes"},
		"GPU handed out by both": {func(e *env) {
			e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
			}}}}
		}, nil, healthy, 2, "a device plugin serves 8"},
		"an ended pod names a claim in use": {nil, []resourceapi.ResourceClaim{claim("team-a", "both", device("n1", "gpu-0000-1b-00-0"))},
			append([]corev1.Pod{
				{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "done"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded},
					Spec: corev1.PodSpec{NodeName: "n1", ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("both")}}}},
			}, healthy...), 1, "pod done has ended and names the claim, which others use: kube-controller-manager can write its status many times a second"},
		"cordon without a plugin that follows": {func(e *env) {
			e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{
				wire.CordonAnnotation(slicetest.Driver, "gpu-0000-1b-00-0"): "NoSchedule",
			}}}}}
		}, nil, healthy, 1, "the GPU is cordoned, but claims can get "},
		"annotation of no GPU": {func(e *env) {
			e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{
				wire.CordonAnnotation(slicetest.Driver, "first"): "NoSchedule",
			}}}}}
		}, nil, healthy, 1, "cordons nothing"},
		"rule for the whole GPU only": {func(e *env) {
			e.rules["mine"] = map[string]any{"spec": map[string]any{
				"deviceSelector": map[string]any{"driver": slicetest.Driver, "pool": "n1/gpu", "device": "gpu-0000-1b-00-0"},
				"taint":          map[string]any{"key": "broken", "effect": "NoSchedule"},
			}}
		}, nil, healthy, 1, "rules 1 of 27 devices with it"},
		"webhook unreachable": {func(e *env) {
			e.metrics("controller", "gpu_dra_webhook_reachable 0\n")
		}, nil, healthy, 2, "the API server reaches the webhook: no"},
		"webhook reachable": {func(e *env) {
			e.metrics("controller", "gpu_dra_webhook_reachable 1\n")
		}, nil, healthy, 0, "the API server reaches the webhook: yes"},
		"two controllers of a node, of which the first one leads": {func(e *env) {
			e.metrics("controller", "gpu_dra_webhook_reachable 0\n")
			e.metrics("controller-2", "gpu_dra_cluster_nodes 1\n")
		}, nil, append(slices.Clone(healthy), driverPod("controller-2", "controller", "controller:1")), 2, "the API server reaches the webhook: no"},
		"two controllers of a node, of which the second one leads": {func(e *env) {
			e.metrics("controller", "gpu_dra_cluster_nodes 1\n")
			e.metrics("controller-2", "gpu_dra_webhook_reachable 0\n")
		}, nil, append(slices.Clone(healthy), driverPod("controller-2", "controller", "controller:1")), 2, "the API server reaches the webhook: no"},
		"advice about a GPU": {func(e *env) {
			e.metrics("plugin", fmt.Sprintf("gpu_dra_device_health{uuid=%q,state=\"healthy\"} 1\ngpu_dra_device_health{uuid=%[1]q,state=\"pcie-width\"} 1\n", e.uuid("gpu-0000-43-00-0")))
		}, nil, healthy, 1, "n1/gpu-0000-43-00-0   the busy GPU uses fewer PCIe lanes than it has. To recover: check the board's seat and the riser"},
		"GPU without a health": {func(e *env) {
			e.metrics("plugin", fmt.Sprintf("gpu_dra_device_health{uuid=%q,state=\"unmonitored\"} 1\n", e.uuid("gpu-0000-43-00-0")))
		}, nil, healthy, 1, "n1/gpu-0000-43-00-0   faults of the GPU cannot be seen"},
		"GPU that no slice has": {func(e *env) {
			e.metrics("plugin", `gpu_dra_device_health{uuid="GPU-gone",state="unreadable"} 1`+"\n")
		}, nil, healthy, 1, "the plugin cannot read GPU GPU-gone"},
		"quarantined records": {func(e *env) {
			e.metrics("plugin", "gpu_dra_quarantined_records 2\n")
		}, nil, healthy, 1, "2 records of claims were unreadable"},
		"stale slices": {func(e *env) {
			e.metrics("plugin", "gpu_dra_last_publish_timestamp_seconds 1e9\n")
		}, nil, healthy, 1, "last checked its slices"},
		"GPUs of a device plugin": {func(e *env) {
			e.metrics("plugin", "gpu_dra_device_plugin_gpus 3\n")
		}, nil, healthy, 1, "a device plugin serves 3 GPUs"},
		"GPU that DCGM has open": {func(e *env) {
			e.metrics("plugin", fmt.Sprintf("gpu_dra_mig_mode_holders{uuid=%q,program=\"nv-hostengine\"} 1\n", e.uuid("gpu-0000-43-00-0")))
		}, nil, healthy, 1, "n1/gpu-0000-43-00-0   nv-hostengine has the GPU open, so its MIG mode cannot be switched on"},
		"stuck partitions": {func(e *env) {
			e.metrics("plugin", "gpu_dra_stuck_partitions 2\n")
		}, nil, healthy, 1, "NVML does not destroy 2 partitions of ended claims"},
		"refused device": {func(e *env) {
			e.metrics("plugin", "gpu_dra_refused_devices{device=\"gpu-0000-43-00-0\"} 1\n")
		}, nil, healthy, 2, "n1/gpu-0000-43-00-0   the API server refuses the present form of the device"},
		"refused slice": {func(e *env) {
			e.metrics("plugin", "gpu_dra_refused_devices{device=\"\"} 1\n")
		}, nil, healthy, 2, "the API server refuses slices of the node"},
		"no right to the proxy": {func(e *env) {
			e.metrics("plugin", "")
			e.forbidden[proxyPath("plugin")] = true
		}, nil, healthy, 1, "not checked   n1           the NVIDIA driver, records, publishing and advice about GPUs: you may not get the subresource pods/proxy in namespace system"},
		"runtime without CDI":  {func(e *env) { e.runtime("containerd://1.6.30") }, nil, healthy, 2, "containerd 1.6.30 cannot read CDI specs"},
		"runtime with CDI off": {func(e *env) { e.runtime("containerd://1.7.2") }, nil, healthy, 1, "enable_cdi"},
		"versions":             {func(e *env) { e.runtime("containerd://2.3.7") }, nil, healthy, 0, "2 GPUs in slices, NVIDIA driver "},
		"no rights to pods": {func(e *env) {
			e.forbidden[podsPath], e.forbidden["/api/v1/namespaces/team-a/pods"] = true, true
		}, nil, nil, 1, "not checked   Pods      you may not list them in all namespaces, so these were not looked at: the controller, its webhook, the plugins"},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, map[string]string{"n1": "hgx-h100"}, c.claims...)
			e.lists[podsPath] = corev1.PodList{Items: c.pods}
			e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}}
			e.metrics("plugin", "gpu_dra_nvidia_driver_loaded 1\n")
			e.metrics("controller", "gpu_dra_cluster_nodes 1\n")
			if c.change != nil {
				c.change(e)
			}
			if code, out, errOut := e.kubectl("doctor", "-v"); code != c.code || !strings.Contains(out, c.says) {
				t.Errorf("exit code %d, want %d and %q; stderr %q, stdout:\n%s", code, c.code, c.says, errOut, out)
			}
		})
	}
}
