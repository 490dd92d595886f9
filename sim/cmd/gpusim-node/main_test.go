// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpu-dra-driver/sim/agent"
)

func TestParse_ArgumentsOfChart_AreOptions(t *testing.T) {
	verb, o, err := parse(strings.Fields("run --node=n --namespace=s --daemonset=d --root=/r --board=l40s-4 --gpus=2 --driver-version=550.54.15 --pod-resources=/p/kubelet.sock"), os.Stderr)
	want := options{
		root: "/r", parts: "/usr/lib/gpusim", ready: "/run/gpu-simulator/ready", node: "n", namespace: "s", daemonSet: "d",
		want: agent.Want{Board: "l40s-4", GPUs: 2, DriverVersion: "550.54.15"}, podResources: "/p/kubelet.sock", cdi: "/var/run/cdi",
	}
	if err != nil || verb != "run" || o != want {
		t.Errorf("%s, %+v, %v", verb, o, err)
	}
}

func TestRun_WrongCommandLine_SaysWhy(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for args, problem := range map[string]string{
		"":                                   "give run, ready or uninstall",
		"up":                                 `no verb "up"`,
		"run more":                           `unexpected "more"`,
		"run --node=n":                       "--namespace and --daemonset are required",
		"run --namespace=s --daemonset=d":    "reach the API server",
		"uninstall --namespace=s":            "--namespace and --daemonset are required",
		"ready --ready-file=/does/not/exist": "no such file",
	} {
		if err := run(t.Context(), strings.Fields(args), os.Stderr); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v, want %q", args, err, problem)
		}
	}
	if err := run(t.Context(), []string{"--help"}, os.Stderr); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
}

func TestReady_FileOfAgent_Succeeds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	if err := os.WriteFile(file, []byte("t4-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"ready", "--ready-file=" + file}, os.Stderr); err != nil {
		t.Error(err)
	}
}
