// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeKubectl finds pods of node-1 and node-2, and repeats the command of exec.
const fakeKubectl = `#!/bin/sh
case "$*" in
*spec.nodeName=node-1,*) echo "simulation gpu-simulator-a" ;;
*spec.nodeName=node-2,*) printf 'a one\nb two\n' ;;
*"exec "*broken) echo "gpusim: no fault" >&2; exit 1 ;;
*"exec "*) echo "$*" ;;
esac
`

func TestKubectlPlugin_Verbs_RunInNodesPod(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(fakeKubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, c := range []struct{ args, want, problem string }{
		{"inject node-1 lose 3", "exec --namespace=simulation gpu-simulator-a -- /usr/bin/gpusim inject lose 3", ""},
		{"--context=ci list node-1", "--context=ci exec --namespace=simulation gpu-simulator-a -- /usr/bin/gpusim list", ""},
		{"inject node-1 --help", "gpusim inject --help", ""},
		{"--help", "kubectl gpu-sim", ""},
		{"", "kubectl gpu-sim", ""},
		{"inject node-1 broken", "", "on node node-1: gpusim: no fault"},
		{"list node-2", "", "has 2 running pods"},
		{"list node-3", "", "has 0 running pods"},
		{"down node-1", "", "no verb"},
		{"inject", "", "give the node"},
		{"inject --help", "", "give the node"},
		{"--context ci list node-1", "", "with an equals sign"},
	} {
		var out strings.Builder
		err := onNode(strings.Fields(c.args), &out)
		if c.problem == "" && (err != nil || !strings.Contains(out.String(), c.want)) {
			t.Errorf("%q: %v\n%s", c.args, err, out.String())
		}
		if c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
			t.Errorf("%q: %v, want %q", c.args, err, c.problem)
		}
	}
}

func TestRun_RootFromEnvironment_NeedsNoFlag(t *testing.T) {
	t.Setenv(rootVariable, filepath.Join(t.TempDir(), "missing"))
	for _, args := range [][]string{{"list"}, {"inject", "lose", "0"}, {"mig", "list", "0"}, {"reboot"}, {"down"}} {
		if _, err := gpusim(t, args...); err == nil || !strings.Contains(err.Error(), os.Getenv(rootVariable)) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
