// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// cellsOf returns the cells of a table's column, from 0.
func cellsOf(table string, column int) (cells []string) {
	for line := range strings.Lines(table) {
		cells = append(cells, strings.Fields(line)[column])
	}
	return cells
}

// TestSortBy_EachWord_OrdersRows has a GPU that a claim holds as a whole, one with a partition and one with a fault.
func TestSortBy_EachWord_OrdersRows(t *testing.T) {
	old, young := claim("team-b", "old", device("n1", "gpu-0000-1b-00-0")), claim("team-a", "young", device("n2", "gpu-0000-1b-00-0-mig-1g-10gb-0"), device("n2", "gpu-0000-1b-00-0-mig-1g-10gb-1"))
	old.CreationTimestamp, young.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour)), metav1.NewTime(time.Now())
	e := start(t, map[string]string{"n1": "hgx-h100", "n2": "hgx-h100", "n3": "l40s-4"}, old, young, claim("team-a", "timeless", device("n3", "gpu-0000-ff-00-0")))
	e.taint("gpu-0000-43-00-0", "lost")
	e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1")}}
	e.metrics("plugin", measurements)
	for _, c := range []struct {
		args   string
		column int
		want   string
	}{
		{"ls --sort-by free", 0, "n2 n3"}, // The rest has none; see the first two rows only.
		{"ls --sort-by memory", 0, "n1 n1 n2 n2 n3 n3 n3"},
		{"ls --sort-by model", 0, "n3"},
		{"ls --sort-by health -A", 0, "n1 n2 n3"},
		{"claims -A --sort-by age", 1, "old young timeless"},
		{"claims -A --sort-by devices", 1, "young timeless old"},
		{"claims -A --sort-by name", 1, "old timeless young"},
		{"claims -A --sort-by node", 1, "old young timeless"},
		{"ls pods -A --sort-by pod", 1, "old timeless young"},
		{"ls pods -A --sort-by devices", 1, "young timeless old"},
		{"top claims -A --sort-by used", 1, "train-0 notebook"},
		{"top pods -A --sort-by name", 1, "notebook train-0"},
		{"top -A --sort-by utilization", 0, "n1"},
	} {
		code, out, errOut := e.kubectl(append(strings.Fields(c.args), "--no-headers")...)
		if got := strings.Join(cellsOf(out, c.column), " "); code != 0 || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: exit code %d, stderr %q, want %s:\n%s", c.args, code, errOut, c.want, out)
		}
	}
	if _, out, _ := e.kubectl("claims", "-A", "--sort-by", "age", "-o", "name"); !strings.HasPrefix(out, "claim.cli.gpu.nvidia.com/old\n") {
		t.Errorf("other formats are not sorted:\n%s", out)
	}
	for _, args := range []string{"ls --sort-by utilisation", "top -w --sort-by power", "claims --sort-by memory"} {
		code, out, errOut := e.kubectl(strings.Fields(args)...)
		if code != 2 || out != "" || !strings.Contains(errOut, "one of") && !strings.Contains(errOut, "terminal") {
			t.Errorf("%s: exit code %d, stderr %q", args, code, errOut)
		}
	}
}

// TestComplete_Flags_OfferTheirWords asks as kubectl does for the user's shell.
func TestComplete_Flags_OfferTheirWords(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100", "n2": "hgx-h100"})
	for _, c := range []struct{ args, want string }{
		{"ls --sort-by", "node gpu model memory free use health :4"},
		{"top --sort-by", "node gpus utilization memory used free power temperature :4"},
		{"claims --sort-by", "namespace name state node devices age :4"},
		{"ls pods --sort-by", "namespace pod node devices :4"},
		{"doctor -o", "table wide json yaml kyaml name go-template go-template-file template templatefile jsonpath jsonpath-as-json jsonpath-file :4"},
		{"ls", "n1 n2 pods"},
	} {
		var out bytes.Buffer
		args := append([]string{"--kubeconfig=" + e.kubeconfig, "__complete"}, append(strings.Fields(c.args), "")...)
		code := run(t.Context(), args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
		words := map[string]bool{}
		for line := range strings.Lines(out.String()) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			words[word] = true
		}
		for word := range strings.FieldsSeq(c.want) {
			if !words[word] {
				t.Errorf("%s: exit code %d, %q is not offered:\n%s", c.args, code, word, out.String())
			}
		}
	}
}
