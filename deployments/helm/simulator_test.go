// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	podsecurity "k8s.io/pod-security-admission/policy"

	"gpu-dra-driver/sim/agent/label"
	"gpu-dra-driver/sim/profiles"
)

// simulatorChart is the chart of simulated nodes.
const simulatorChart = "gpu-simulator"

// renderSimulator returns the manifests of the simulator's chart.
func renderSimulator(t *testing.T, args ...string) string {
	t.Helper()
	out, err := template(t, "gpu-simulator", simulatorChart, append([]string{"--namespace", "gpu-simulator", "--set", registry}, args...)...)
	if err != nil {
		t.Fatalf("helm template %q: %v", args, err)
	}
	return out
}

func TestSimulator_Default_RendersGolden(t *testing.T) {
	got := renderSimulator(t)
	conform(t, got)
	file := filepath.Join("testdata", "simulator", "default.yaml")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("go test ./helm -update writes the golden: %v", err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("go test ./helm -update writes the golden (-golden +rendered):\n%s", diff)
	}
	if out, problems, err := tool(t, nil, "helm", "lint", "--strict", simulatorChart, "--set", registry); err != nil {
		t.Errorf("%v\n%s%s", err, out, problems)
	}
}

// TestSimulator_EveryValueSet_Conforms also proves that the values reach the pods.
func TestSimulator_EveryValueSet_Conforms(t *testing.T) {
	got := renderSimulator(t, "--set", "board=l40s-4,gpus=2,driverVersion=550.54.15,root=/opt/sim/,fullnameOverride=sim,"+
		"nodeSelector.kubernetes\\.io/os=windows,nodeSelector.ci=yes,imagePullSecrets[0].name=pull,priorityClassName=high,podAnnotations.a=b,"+
		"tolerations=null,resources=null,admissionPolicy.enabled=false")
	conform(t, got)
	for _, text := range []string{
		"--board=l40s-4\n", "--gpus=2\n", "--driver-version=550.54.15\n", "--root=/opt/sim\n", "path: /opt/sim\n", "value: \"/opt/sim\"\n",
		"--daemonset=sim\n", "ci: \"yes\"", "kubernetes.io/os: linux", "- name: pull", "priorityClassName: high",
	} {
		if !strings.Contains(got, text) {
			t.Errorf("the manifests lack %q", text)
		}
	}
	for _, text := range []string{"windows", "kind: ValidatingAdmissionPolicy"} {
		if strings.Contains(got, text) {
			t.Errorf("the manifests have %q", text)
		}
	}
}

func TestSimulator_WrongValues_Refused(t *testing.T) {
	for _, set := range []string{"root=/", "root=/var/lib/", "root=/dev", "root=relative", "board=", "board=H100", "gpus=17", "image.registry=", "other=1"} {
		if out, err := template(t, "gpu-simulator", simulatorChart, "--set", registry, "--set", set); err == nil {
			t.Errorf("--set %s is taken:\n%s", set, out)
		}
	}
}

// TestSimulator_Labels_AreOfAgentAndDriversChart compares the names that programs and charts must have in common.
func TestSimulator_Labels_AreOfAgentAndDriversChart(t *testing.T) {
	got := renderSimulator(t)
	if own := "['" + label.Present + "', '" + label.Hardware + "']"; !strings.Contains(got, own) {
		t.Errorf("the admission policy does not allow %s", own)
	}
	simulator := decode[appsv1.DaemonSet](t, got, "DaemonSet")["gpu-simulator"].Spec.Template.Spec
	place := func(pod corev1.PodSpec, volume string) string {
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == volume })
		if i < 0 {
			t.Fatalf("no volume %s", volume)
		}
		return pod.Volumes[i].HostPath.Path
	}
	root := place(simulator, "root")
	for name, ds := range decode[appsv1.DaemonSet](t, render(t, chart, "--set", "simulator.enabled=true"), "DaemonSet") {
		pod := ds.Spec.Template.Spec
		if place(pod, "driver-root") != root || place(pod, "proc") != root+"/proc" {
			t.Errorf("%s has not the root %s", name, root)
		}
		terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(terms) != 1 || terms[0].MatchExpressions[0].Key != label.Present {
			t.Errorf("%s selects nodes by %v", name, terms)
		}
	}
	board, ok := strings.CutPrefix(simulator.Containers[0].Args[5], "--board=")
	if !ok || !slices.Contains(profiles.Names(), board) {
		t.Errorf("no board %s", board)
	}
}

// TestSimulatorPage_Commands_AreOfCharts renders the installations of the page, and looks up its boards and the pods' level.
func TestSimulatorPage_Commands_AreOfCharts(t *testing.T) {
	text, err := os.ReadFile("../../docs/simulator.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.ReplaceAll(string(text), "\\\n", " ")
	installs := 0
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		if i := slices.Index(words, "install"); i > 0 && words[i-1] == "helm" {
			installs++
			var args []string
			for n, word := range words {
				if word == "--set" {
					args = append(args, word, words[n+1])
				}
			}
			if out, err := template(t, words[i+1], strings.TrimPrefix(words[i+2], "deployments/helm/"), args...); err != nil || !strings.Contains(out, "kind: DaemonSet") {
				t.Errorf("%s: %v", line, err)
			}
		}
		for _, word := range words {
			if board, ok := strings.CutPrefix(word, label.Board+"="); ok && board != label.None && !slices.Contains(profiles.Names(), board) {
				t.Errorf("%s: no board %s", line, board)
			}
		}
	}
	if installs != 2 {
		t.Errorf("the page has %d installations", installs)
	}
}

// TestSimulator_PodSecurityLevels_OnlyHostPathIsPrivileged evaluates the pods as API servers do. MKNOD is of the level baseline.
func TestSimulator_PodSecurityLevels_OnlyHostPathIsPrivileged(t *testing.T) {
	evaluator, err := podsecurity.NewEvaluator(podsecurity.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	forbidden := func(level api.Level, spec corev1.PodSpec) string {
		at := api.LevelVersion{Level: level, Version: api.LatestVersion()}
		result := podsecurity.AggregateCheckResults(evaluator.EvaluatePod(at, &metav1.ObjectMeta{}, &spec))
		return result.ForbiddenDetail()
	}
	got := renderSimulator(t)
	node := decode[appsv1.DaemonSet](t, got, "DaemonSet")["gpu-simulator"].Spec.Template.Spec
	if why := forbidden(api.LevelBaseline, node); why != `hostPath volumes (volumes "root", "pod-resources", "cdi")` {
		t.Errorf("the level baseline forbids the node's pod for %s", why)
	}
	if why := forbidden(api.LevelRestricted, decode[batchv1.Job](t, got, "Job")["gpu-simulator-uninstall"].Spec.Template.Spec); why != "" {
		t.Errorf("the level restricted forbids the uninstallation's pod for %s", why)
	}
}
