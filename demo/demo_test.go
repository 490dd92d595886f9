// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package demo_test checks the demos without a cluster: their form, their fields against the API's schemas, and that
// their CEL expressions match the intended GPUs. The end-to-end tests run them.
package demo_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"
)

func demos(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for name, files := range demoFiles(t) {
		var all []string
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, string(data))
		}
		texts[name] = strings.Join(all, "\n---\n")
	}
	return texts
}

// demoFiles returns the files of the demos by the demos' names. The one whose head counts pods comes first, then those that
// its steps apply.
func demoFiles(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no demos: %v", err)
	}
	out := map[string][]string{}
	for _, file := range files {
		out[strings.TrimSuffix(file, ".yaml")] = []string{file}
	}
	if files, err = filepath.Glob("*/*.yaml"); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if head.Match(data) {
			out[filepath.Dir(file)] = []string{file}
			for _, step := range applied.FindAllSubmatch(data, -1) {
				out[filepath.Dir(file)] = append(out[filepath.Dir(file)], string(step[1]))
			}
		}
	}
	return out
}

// applied finds a file of demo that a step applies.
var applied = regexp.MustCompile("(?m)^# (?:Then|Refused): `kubectl apply -f demo/(\\S+)`$")

func TestDemos_Schemas_Valid(t *testing.T) {
	var files []string
	for _, some := range demoFiles(t) {
		files = append(files, some...)
	}
	args := append([]string{
		"kubeconform", "-strict",
		"-schema-location", "../deployments/helm/testdata/schemas/{{.ResourceKind}}{{.KindSuffix}}.json",
	}, files...)
	if out, err := exec.Command("../hack/tool.sh", args...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// object is an object of any kind.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	raw []byte
}

func objects(t *testing.T, text string) []object {
	t.Helper()
	var all []object
	for doc := range strings.SplitSeq(text, "\n---\n") {
		o := object{raw: []byte(doc)}
		if err := yaml.Unmarshal(o.raw, &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

func decode[T any](t *testing.T, o object) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict(o.raw, &v); err != nil {
		t.Fatalf("%s %s: %v", o.Kind, o.Metadata.Name, err)
	}
	return v
}

func podSpecs(t *testing.T, objs []object) []corev1.PodSpec {
	t.Helper()
	var specs []corev1.PodSpec
	for _, o := range objs {
		switch o.Kind {
		case "Pod":
			specs = append(specs, decode[corev1.Pod](t, o).Spec)
		case "Deployment":
			specs = append(specs, decode[appsv1.Deployment](t, o).Spec.Template.Spec)
		case "Job":
			specs = append(specs, decode[batchv1.Job](t, o).Spec.Template.Spec)
		}
	}
	return specs
}

var head = regexp.MustCompile(`^# \S.*\n(# .*\n)+# (Pods|Pending): [0-9]+\n(# (Pods|Pending|Then|Refused): .+\n)*[^#]`)

func TestDemos_Files_FollowConventions(t *testing.T) {
	var chart struct {
		AppVersion string `json:"appVersion"`
	}
	data, err := os.ReadFile("../deployments/helm/gpu-dra-driver/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &chart); err != nil {
		t.Fatal(err)
	}
	for name, text := range demos(t) {
		if !head.MatchString(text) {
			t.Errorf("%s: the head is not a title, what to expect, and a line Pods: or Pending:", name)
		}
		objs := objects(t, text)
		if objs[0].Kind != "Namespace" || objs[0].Metadata.Name != "demo-"+name {
			t.Errorf("%s: the first object is not its namespace demo-%s", name, name)
		}
		for _, o := range objs[1:] {
			if o.Kind != "DeviceClass" && o.Kind != "PriorityClass" && o.Metadata.Namespace != "demo-"+name {
				t.Errorf("%s: %s %s is in namespace %q", name, o.Kind, o.Metadata.Name, o.Metadata.Namespace)
			}
		}
		for _, spec := range podSpecs(t, objs) {
			for _, c := range spec.Containers {
				if want := "gpu-dra-driver/probe:" + chart.AppVersion; c.Image != want || c.ImagePullPolicy != corev1.PullIfNotPresent {
					t.Errorf("%s: image %s (%s), want %s (IfNotPresent)", name, c.Image, c.ImagePullPolicy, want)
				}
				if len(c.Resources.Claims)+len(c.Resources.Limits) == 0 {
					t.Errorf("%s: container %s uses nothing", name, c.Name)
				}
			}
		}
	}
}

// TestDemos_PodClaims_AreDeclared checks that each demo contains its pods' claims and uses all of them.
func TestDemos_PodClaims_AreDeclared(t *testing.T) {
	for name, text := range demos(t) {
		objs := objects(t, text)
		have := map[string]bool{}
		for _, o := range objs {
			if o.Kind == "ResourceClaim" || o.Kind == "ResourceClaimTemplate" {
				have[o.Kind+"/"+o.Metadata.Name] = false
			}
		}
		for _, spec := range podSpecs(t, objs) {
			named := map[string]bool{}
			for _, c := range spec.ResourceClaims {
				named[c.Name] = true
				key := "ResourceClaim/"
				if c.ResourceClaimName != nil {
					key += *c.ResourceClaimName
				} else {
					key = "ResourceClaimTemplate/" + *c.ResourceClaimTemplateName
				}
				if _, ok := have[key]; !ok {
					t.Errorf("%s: a pod names %s, which is not there", name, key)
				}
				have[key] = true
			}
			for _, c := range spec.Containers {
				for _, use := range c.Resources.Claims {
					if !named[use.Name] {
						t.Errorf("%s: container %s uses the claim %q, which its pod does not name", name, c.Name, use.Name)
					}
				}
			}
		}
		for key, used := range have {
			if !used {
				t.Errorf("%s: no pod names %s", name, key)
			}
		}
	}
}

func board(product, memory string) dracel.Device {
	const domain = "gpu.nvidia.com"
	kind := "gpu"
	d := dracel.Device{
		Driver: domain,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			domain + "/type":        {StringValue: &kind},
			domain + "/productName": {StringValue: &product},
		},
	}
	d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{domain + "/memory": {Value: resource.MustParse(memory)}}
	return d
}

func indexed(d dracel.Device, index int64) dracel.Device {
	d.Attributes["gpu.nvidia.com/index"] = resourceapi.DeviceAttribute{IntValue: &index}
	return d
}

// versioned adds the versions that every GPU and partition publishes.
func versioned(d dracel.Device, capability string) dracel.Device {
	driver := "580.65.6"
	d.Attributes["gpu.nvidia.com/cudaComputeCapability"] = resourceapi.DeviceAttribute{VersionValue: &capability}
	d.Attributes["gpu.nvidia.com/driverVersion"] = resourceapi.DeviceAttribute{VersionValue: &driver}
	return d
}

// Totals as NVML reports them: 81559, 46068 and 15360 MiB.
var boards = map[string]dracel.Device{
	"H100": versioned(indexed(board("NVIDIA H100 80GB HBM3", "81559Mi"), 7), "9.0.0"),
	"L40S": versioned(indexed(board("NVIDIA L40S", "46068Mi"), 0), "8.9.0"),
	"T4":   versioned(indexed(board("Tesla T4", "15360Mi"), 1), "7.5.0"),
}

// partitions are some MIG devices of an H100, by profile.
var partitions = func() map[string]dracel.Device {
	out := map[string]dracel.Device{}
	for _, profile := range profiles {
		kind := "mig"
		d := board("NVIDIA H100 80GB HBM3", "9856Mi")
		d.Attributes["gpu.nvidia.com/type"] = resourceapi.DeviceAttribute{StringValue: &kind}
		d.Attributes["gpu.nvidia.com/profile"] = resourceapi.DeviceAttribute{StringValue: &profile}
		d.Attributes["resource.kubernetes.io/numaNode"] = resourceapi.DeviceAttribute{IntValue: new(int64(1))}
		out[profile] = d
	}
	return out
}()

var profiles = []string{"1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"}

// groups are NVLink groups by their size.
var groups = func() map[string]dracel.Device {
	out := map[string]dracel.Device{}
	for _, size := range sizes {
		n, kind := int64(size[0]-'0'), "nvlink-group"
		out[size] = dracel.Device{Driver: "gpu.nvidia.com", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"gpu.nvidia.com/type": {StringValue: &kind}, "gpu.nvidia.com/gpuCount": {IntValue: &n},
		}}
	}
	return out
}()

var sizes = []string{"2", "4", "8"}

// found lists the devices that all selectors match: whole boards, or partitions for a partition class.
func found(t *testing.T, class string, selectors []resourceapi.DeviceSelector) string {
	t.Helper()
	var names []string
	candidates, devices := []string{"H100", "L40S", "T4"}, boards
	if strings.HasPrefix(class, "mig") {
		candidates, devices = profiles, partitions
	}
	if strings.HasPrefix(class, "nvlink") {
		candidates, devices = sizes, groups
	}
	if size, ok := strings.CutPrefix(class, "nvlink-"); ok { // A class that the controller makes.
		candidates = []string{size[:1]}
	}
	for _, name := range candidates {
		all := true
		for _, s := range selectors {
			compiled := dracel.GetCompiler(dracel.Features{}).CompileCELExpression(s.CEL.Expression, dracel.Options{})
			if compiled.Error != nil {
				t.Fatalf("%s: %v", s.CEL.Expression, compiled.Error)
			}
			match, _, err := compiled.DeviceMatches(t.Context(), devices[name])
			if err != nil {
				t.Fatalf("%s on %s: %v", s.CEL.Expression, name, err) // aborts the allocation on a cluster
			}
			all = all && match
		}
		if all {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

func TestDemos_Selectors_MatchTheirGPUs(t *testing.T) {
	const every, everyPart = "H100 L40S T4", "1g.10gb 2g.20gb 3g.40gb 7g.80gb"
	want := map[string]string{ // demo/request[/subrequest] → boards, where not every one
		"by-model-cel/gpu":         "H100",
		"first-available/gpu/h100": "H100",
		"first-available/gpu/l40s": "L40S",
		"unsatisfiable/gpu":        "",
		"fraction-refused/gpu":     "H100",
		"fraction-mixed/part":      "2g.20gb",
		"fraction-of-mig/part":     "3g.40gb",
		"nvlink-groups/four":       "4",
		"nvlink-groups/two":        "2",
		"nvlink-eight/eight":       "8",
		"nvlink-job/two":           "2",
		"nvlink-waits/eight":       "8",
		"nvlink-waits/part":        "1g.10gb",
		"nvlink-fill/four":         "4",
		"pack/first":               "L40S", // The one with index 0.
		"pack/group":               "4",
		"pack/part/second-half":    "1g.10gb",
		"pack/part/anywhere":       "1g.10gb",
		"nvlink-fill/part":         "1g.10gb",
		"mig-one/gpu":              "1g.10gb",
		"mig-four-of-one-gpu/a":    "1g.10gb",
		"mig-four-of-one-gpu/b":    "1g.10gb",
		"use-and-cost/part":        "1g.10gb",
		"mig-mixed/large":          "3g.40gb",
		"mig-mixed/medium":         "2g.20gb",
		"mig-mixed/small":          "1g.10gb",
		"mig-mixed/tiny":           "1g.10gb",
		"mig-and-whole/seven":      "7g.80gb",
		"mig-and-whole/medium":     "2g.20gb",
		"mig-and-whole/small":      "1g.10gb",
	}
	seen := map[string]bool{}
	for name, text := range demos(t) {
		for _, o := range objects(t, text) {
			var spec resourceapi.ResourceClaimSpec
			switch o.Kind {
			case "ResourceClaim":
				spec = decode[resourceapi.ResourceClaim](t, o).Spec
			case "ResourceClaimTemplate":
				spec = decode[resourceapi.ResourceClaimTemplate](t, o).Spec.Spec
			case "DeviceClass":
				class := decode[resourceapi.DeviceClass](t, o)
				if got := found(t, "", class.Spec.Selectors); got != every {
					t.Errorf("%s: class %s finds %q", name, class.Name, got)
				}
			}
			for _, r := range spec.Devices.Requests {
				selectors, classes := map[string][]resourceapi.DeviceSelector{}, map[string]string{}
				if key := name + "/" + r.Name; r.Exactly != nil {
					selectors[key], classes[key] = r.Exactly.Selectors, r.Exactly.DeviceClassName
				}
				for _, sub := range r.FirstAvailable {
					key := name + "/" + r.Name + "/" + sub.Name
					selectors[key], classes[key] = sub.Selectors, sub.DeviceClassName
				}
				for key, s := range selectors {
					class := classes[key]
					expected, ok := want[key]
					if !ok {
						expected = every
						if strings.HasPrefix(class, "mig") {
							expected = everyPart
						}
					}
					seen[key] = true
					if got := found(t, class, s); got != expected {
						t.Errorf("%s finds %q, want %q", key, got, expected)
					}
				}
			}
		}
	}
	for key := range want {
		if !seen[key] {
			t.Errorf("there is no request %s", key)
		}
	}
}

// TestDemos_AdminAccess_AsksInFull checks that the monitoring demo has all requirements of monitoring.
func TestDemos_AdminAccess_AsksInFull(t *testing.T) {
	text := demos(t)["admin-access"]
	for _, o := range objects(t, text) {
		if o.Kind != "ResourceClaimTemplate" || o.Metadata.Name != "watch-all" {
			continue
		}
		r := decode[resourceapi.ResourceClaimTemplate](t, o).Spec.Spec.Devices.Requests[0].Exactly
		if r.AdminAccess == nil || !*r.AdminAccess || r.DeviceClassName != "monitor.gpu.nvidia.com" || len(r.Tolerations) != 1 {
			t.Errorf("request = %+v", r)
		}
		if !bytes.Contains([]byte(text), []byte(`resource.kubernetes.io/admin-access: "true"`)) {
			t.Error("the namespace lacks the label")
		}
		return
	}
	t.Error("no request to watch")
}
