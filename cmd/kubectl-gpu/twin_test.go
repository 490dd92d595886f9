// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// whyOfFile runs `kubectl gpu why -f` for a text, on an empty board of the demos.
func whyOfFile(t *testing.T, text string) (code int, stdout, stderr string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	code = run(t.Context(), []string{"why", "-f", path, "--board", "hgx-h100", "--kubeconfig=" + os.DevNull}, genericiooptions.IOStreams{Out: &out, ErrOut: &errOut})
	return code, out.String(), errOut.String()
}

var waits = regexp.MustCompile(`[0-9] waits?:`)

// waitingDemos reads the demos of which a pod waits from the output of `make try`.
func waitingDemos(t *testing.T) map[string]bool {
	t.Helper()
	data, err := os.ReadFile("../../test/try/testdata/index.txt")
	if err != nil {
		t.Fatal(err)
	}
	out, name := map[string]bool{}, ""
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 0 && line[0] != ' ' {
			name = fields[0]
			out[name] = false
		}
		out[name] = out[name] || waits.MatchString(line)
	}
	return out
}

// TestWhyOfFile_EachDemo_AgreesWithTry has the demos that `make try` plays. Those of some need what a file of pods does not have.
func TestWhyOfFile_EachDemo_AgreesWithTry(t *testing.T) {
	known := waitingDemos(t)
	unlike := map[string]string{
		"quota": "ResourceQuota", "budget": "GPUBudget", // The answer says that these were not looked at.
		"share-annotation": "podShares", "hami-pods": "podShares", "kai-pods": "podShares",
	}
	// They need settings of the chart.
	settings := map[string]bool{"replicas": true, "replicas-mig": true, "share-annotation": true, "hami-pods": true, "kai-pods": true}
	files, err := filepath.Glob("../../demo/*.yaml")
	if err != nil || len(files) < 40 {
		t.Fatal(len(files), err)
	}
	for _, dir := range []string{"budget", "priority"} {
		more, err := filepath.Glob("../../demo/" + dir + "/*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			code, out, errOut := whyOfFile(t, string(data))
			waiting, played := known[name]
			want := 0
			if waiting && unlike[name] == "" {
				want = 1
			}
			switch {
			case settings[name]:
			case played && code != want:
				t.Errorf("exit code %d, want %d:\n%s%s", code, want, out, errOut)
			case !played && code == 2:
				t.Errorf("the objects are refused:\n%s%s", out, errOut)
			}
			if kind := unlike[name]; kind != "" && !strings.Contains(errOut, kind) {
				t.Errorf("%s was not looked at, and the answer does not say so: %s", kind, errOut)
			}
		})
	}
}

// TestWhyOfFile_Reviews_AgreeWithTheWebhook has the objects whose answers the tests of the webhook check.
func TestWhyOfFile_Reviews_AgreeWithTheWebhook(t *testing.T) {
	for _, what := range []string{"denied", "warned"} {
		data, err := os.ReadFile("../../demo/reviews/" + what + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for i, object := range strings.Split(string(data), "\n---\n") {
			lines := strings.Split(object, "\n")
			if i == 0 {
				lines = lines[1:] // The head of the file.
			}
			want := strings.TrimPrefix(lines[0], "# ")
			if strings.Contains(object, "kind: DeviceClass\n") {
				continue // Classes have no pods.
			}
			code, out, errOut := whyOfFile(t, object)
			if strings.Contains(want, "the scheduler would give up") {
				want = "the scheduler's attempt fails" // It is why the pod waits.
			}
			if (code == 2) != (what == "denied") || !strings.Contains(out, want) {
				t.Errorf("%s: exit code %d, want %q:\n%s%s", lines[4], code, want, out, errOut)
			}
		}
	}
}

const (
	podHead = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
	oneGPU  = "resources: {limits: {nvidia.com/gpu: 1}}"
)

// TestWhyOfFile_Objects_SayWhatAnAPIServerSays has objects that API servers refuse, workloads of several pods, and kinds that
// are not known here.
func TestWhyOfFile_Objects_SayWhatAnAPIServerSays(t *testing.T) {
	claim := "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com%s}}]}}\n"
	workload := func(version, kind, spec string) string {
		return "apiVersion: " + version + "\nkind: " + kind + "\nmetadata: {name: w}\nspec:\n" + spec
	}
	template := "{spec: {containers: [{name: c, image: i, " + oneGPU + "}]}}"
	for name, c := range map[string]struct {
		text      string
		code      int
		out, errs string
	}{
		"a part of a GPU":         {podHead + "spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 0.5}}}]}", 2, "pod team/a is refused: container c: nvidia.com/gpu: 500m is not a whole number.", ""},
		"less than nothing":       {podHead + "spec: {containers: [{name: c, resources: {limits: {memory: -1Gi}}}]}", 2, "memory: -1Gi is less than 0", ""},
		"a request without limit": {podHead + "spec: {containers: [{name: c, resources: {requests: {nvidia.com/gpu: 1}}}]}", 2, "the limit and the request must be equal", ""},
		"an unknown field":        {podHead + "spec: {container: []}", 2, `Pod team/a is refused: strict decoding error: unknown field "spec.container".`, ""},
		"a field of a claim":      {strings.Replace(claim, "%s", ", cont: 2", 1), 2, `unknown field "spec.devices.requests[0].exactly.cont"`, ""},
		"a claim that no one has": {podHead + "spec: {containers: [{name: c, resources: {claims: [{name: g}]}}]}", 2, "names the claim g, which resourceClaims lacks", ""},
		"a request of before v1": {strings.Replace(claim, "exactly: {deviceClassName: gpu.nvidia.com%s}", "deviceClassName: gpu.nvidia.com", 1), 2,
			`unknown field "spec.devices.requests[0].deviceClassName" (in resource.k8s.io/v1 it stands below "exactly:").`, ""},
		"an amount with its unit": {strings.Replace(claim, "%s", ", capacity: {requests: {memory: 10GB}}", 1), 2, "(write 10G for 10GB).", ""},
		"few bytes":               {strings.Replace(claim, "%s", ", capacity: {requests: {memory: 10}}", 1), 0, "10 is less than the least share, 16Mi, to which the scheduler raises it", ""},
		"replicas that fit":       {workload("apps/v1", "Deployment", "  replicas: 8\n  selector: {matchLabels: {a: b}}\n  template: "+template), 0, "pod team/w: 8 of 8 replicas fit now, on template.", ""},
		"replicas":                {workload("apps/v1", "Deployment", "  replicas: 10\n  selector: {matchLabels: {a: b}}\n  template: "+template), 1, "pod team/w: 8 of 10 replicas fit. The next one waits", ""},
		"pods of a Job":           {workload("batch/v1", "Job", "  parallelism: 10\n  completions: 10\n  template: "+strings.Replace(template, "{containers", "{restartPolicy: Never, containers", 1)), 0, "8 of 10 pods fit at a time", ""},
		"a Service beside a pod":  {podHead + "spec: {containers: [{name: c, " + oneGPU + "}]}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\n", 0, "pod team/a fits", "note: not looked at: Service team/s"},
		"another kind":            {workload("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "  leaderWorkerTemplate:\n    workerTemplate: "+strings.Replace(template, "gpu: 1", "gpu: 9", 1)), 1, "pod team/w-leaderWorkerTemplate-workerTemplate waits", "the number of pods of LeaderWorkerSet team/w"},
		"no YAML":                 {"{{{", 2, "", "document 1 of the manifest"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.ReplaceAll(c.text, "metadata: {name: ", "metadata: {namespace: team, name: ")
			code, out, errOut := whyOfFile(t, text)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errOut, c.errs) {
				t.Errorf("exit code %d, want %d, with %q and %q:\n%s%s", code, c.code, c.out, c.errs, out, errOut)
			}
		})
	}
}
