// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/pkg/show/view"
)

// TestRun_OddObjects_SentenceAndNoStack shows objects that no driver or user should make.
func TestRun_OddObjects_SentenceAndNoStack(t *testing.T) {
	published := func(e *env) *resourceapi.ResourceSliceList {
		all, _ := e.lists[slicesPath].(resourceapi.ResourceSliceList)
		return &all
	}
	big := claim("team-a", "big", device("n1", "gpu-0000-1b-00-0"))
	big.Annotations = map[string]string{"note": strings.Repeat("x", 1<<20)}
	big.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.nvidia.com", Parameters: runtime.RawExtension{Raw: []byte(`{"a":"` + strings.Repeat("y", 1<<20) + `"}`)}},
	}}}
	for name, c := range map[string]struct {
		change      func(*env)
		args        []string
		code        int
		out, errOut string
	}{
		"half a pool": {func(e *env) {
			all := published(e)
			all.Items = all.Items[1:]
			e.lists[slicesPath] = *all
		}, []string{"ls"}, 0, "gpu-0000-1b-00-0", "slices are missing, as during an update"},
		"another driver's slices": {func(e *env) {
			all := published(e)
			for i := range all.Items {
				all.Items[i].Spec.Driver = "nic.example.com"
			}
			e.lists[slicesPath] = *all
		}, []string{"slices"}, 0, "", "slices of driver nic.example.com are not listed"},
		"devices of other names": {func(e *env) {
			all := published(e)
			for i := range all.Items {
				for j := range all.Items[i].Spec.Devices {
					all.Items[i].Spec.Devices[j].Name = "eth-ß"
				}
			}
			e.lists[slicesPath] = *all
		}, []string{"layout"}, 0, "n1: 0 of 0 GPUs free", "devices have names that driver gpu.nvidia.com does not give"},
		"malformed quantities": {func(e *env) {
			e.lists[slicesPath] = `{"kind":"ResourceSliceList","apiVersion":"resource.k8s.io/v1","items":[{"spec":{"devices":[{"name":"a","capacity":{"memory":{"value":"lots"}}}]}}]}`
		}, []string{"ls"}, 1, "", "list ResourceSlices: "},
		"an answer that is not a list": {func(e *env) { e.lists[slicesPath] = "<html>" }, []string{"ls"}, 1, "", "list ResourceSlices: "},
		"a claim of 2 MB": {func(e *env) {
			e.lists[claimsPath] = resourceapi.ResourceClaimList{Items: []resourceapi.ResourceClaim{big}}
		}, []string{"ls"}, 0, "team-a/big", ""},
		"names in Unicode": {func(e *env) {
			e.lists[claimsPath] = resourceapi.ResourceClaimList{Items: []resourceapi.ResourceClaim{claim("größe-名前", "entraînement-数値", device("n1", "gpu-0000-1b-00-0"))}}
		}, []string{"claims", "-A"}, 0, "größe-名前", ""},
		"an unknown node in Unicode": {func(*env) {}, []string{"layout", "nœud"}, 1, "", `node "nœud" publishes no devices`},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, map[string]string{"n1": "hgx-h100"})
			c.change(e)
			code, out, errOut := e.kubectl(c.args...)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errOut, c.errOut) || strings.Contains(errOut, "goroutine") {
				t.Errorf("exit code %d, stderr %.500q, stdout:\n%.2000s", code, errOut, out)
			}
		})
	}
}

func TestDrawing_NarrowTerminalUnicodeNames_Fits(t *testing.T) {
	n := view.Node{Name: strings.Repeat("nœud-", 20), GPUs: []view.GPU{{
		Name: "gpu-0000-1b-00-0", Use: view.Whole, Product: "NVIDIA 名前", MemoryBytes: 80 << 30,
		Allocations: []view.Allocation{{Device: "gpu-0000-1b-00-0", Claim: view.ClaimRef{Namespace: "größe", Name: strings.Repeat("ß", 60)}, Pods: []string{"pod-ü"}}},
	}}}
	for _, line := range strings.Split(view.Drawing{Width: minWidth}.Node(n), "\n") {
		if utf8.RuneCountInString(line) > minWidth || !utf8.ValidString(line) {
			t.Errorf("line of %d columns: %q", utf8.RuneCountInString(line), line)
		}
	}
}
