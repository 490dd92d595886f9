// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

const execPath = "/api/v1/namespaces/system/pods/plugin/exec"

// hangs never answers.
var hangs = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })

// program answers an exec as an API server does: by standard output, standard error and a status.
func program(ran *[]string, out, errOut, status string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		*ran = append(*ran, strings.Join(r.URL.Query()["command"], " "))
		c := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {Binary: true, Channels: []wsstream.ChannelType{
			wsstream.IgnoreChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel,
		}}})
		_, channels, err := c.Open(w, r)
		if err != nil {
			return
		}
		for i, text := range []string{1: out, 2: errOut, 3: status} {
			if text != "" {
				_, _ = channels[i].Write([]byte(text))
			}
		}
		_ = c.Close()
	}
}

func TestClear_Device_RunsThePluginsProgram(t *testing.T) {
	const success, failure = `{"status":"Success"}`, `{"status":"Failure","reason":"NonZeroExitCode","message":"exit code 1"}`
	var ran []string
	for name, c := range map[string]struct {
		exec        any
		args        []string
		pods        []corev1.Pod
		code        int
		out, errOut string
		ran         []string
	}{
		"a fault": {program(&ran, "GPU 0000:1b:00.0: cleared reset (XID 46)\n", "", success), []string{"n1/gpu-0000-1b-00-0-mig-1g-10gb-0", "n1/gpu-0000-1b-00-0"},
			nil, 0, "cleared reset (XID 46)\ngpu n1/gpu-0000-1b-00-0: the plugin removes its taint within 30 s", "",
			[]string{"dra-kubelet-plugin --clear-faults=0000:1b:00.0"}},
		"no node, one in the cluster": {program(&ran, "GPU 0000:1b:00.0: cleared reset (XID 46)\n", "", success), []string{"gpu-0000-1b-00-0"},
			nil, 0, "gpu n1/gpu-0000-1b-00-0: the plugin removes", "", []string{"dra-kubelet-plugin --clear-faults=0000:1b:00.0"}},
		"no fault":             {program(&ran, "GPU 0000:1b:00.0 has no remembered faults\n", "", success), []string{"n1/gpu-0000-1b-00-0"}, nil, 0, "has no remembered faults\n", "", nil},
		"disk full":            {program(&ran, "", "remove the record: no space left\n", failure), []string{"n1/gpu-0000-1b-00-0"}, nil, 1, "", "clear the faults of GPU n1/gpu-0000-1b-00-0: pod system/plugin: remove the record: no space left", nil},
		"escape in the output": {program(&ran, "\x1b[2JGPU 0000:1b:00.0: cleared\n", "", success), []string{"n1/gpu-0000-1b-00-0"}, nil, 0, "^[[2JGPU", "", nil},
		"escape in the error":  {program(&ran, "", "\x1b[2Jno space left\n", failure), []string{"n1/gpu-0000-1b-00-0"}, nil, 1, "", "pod system/plugin: ^[[2Jno space left", nil},
		"old plugin":           {nil, []string{"n1/gpu-0000-1b-00-0"}, nil, 1, "", "clear the faults of GPU n1/gpu-0000-1b-00-0: run a program in pod system/plugin", nil},
		"no plugin":            {nil, []string{"n1/gpu-0000-1b-00-0"}, []corev1.Pod{}, 1, "", "no plugin of the driver runs on the node", nil},
		"a tenant's pod":       {nil, []string{"n1/gpu-0000-1b-00-0"}, []corev1.Pod{tenantPod()}, 1, "", "no plugin of the driver runs on the node", nil},
		"no device":            {nil, nil, nil, 2, "", "a device is missing", nil},
		"no such GPU":          {nil, []string{"n1/gpu-0000-ff-00-0"}, nil, 1, "", "publishes no device", nil},
		"never answers":        {hangs, []string{"n1/gpu-0000-1b-00-0", "--request-timeout=3s"}, nil, 1, "", "run a program in pod system/plugin", nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, map[string]string{"n1": "hgx-h100"})
			e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1")}}
			if c.pods != nil {
				e.lists[podsPath] = corev1.PodList{Items: c.pods}
			}
			if c.exec != nil {
				e.lists[execPath] = c.exec
			}
			ran = nil
			code, out, errOut := e.kubectl(append([]string{"clear"}, c.args...)...)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errOut, c.errOut) || strings.Contains(errOut, "goroutine") {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errOut)
			}
			if c.ran != nil && !slices.Equal(ran, c.ran) {
				t.Errorf("ran %q, want %q", ran, c.ran)
			}
		})
	}
}

func TestClear_NoRight_SaysWhich(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	e.lists[podsPath] = corev1.PodList{ListMeta: metav1.ListMeta{}, Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1")}}
	e.forbidden[execPath] = true
	if code, _, errOut := e.kubectl("clear", "n1/gpu-0000-1b-00-0"); code != 1 || !strings.Contains(errOut, "you may not create the subresource pods/exec in namespace system") {
		t.Errorf("exit code %d, stderr %q", code, errOut)
	}
}
