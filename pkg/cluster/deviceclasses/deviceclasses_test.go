// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/gpu"
)

var options = Options{Driver: "gpu.nvidia.com", Models: true, Profiles: true, Groups: true, ResourcePrefix: "nvidia.com/mig-"}

func whole(product string) pool.Kind {
	return pool.Kind{Type: gpu.KindGPU, Product: product, GPUs: 1}
}

// longest is a model with a class name of more than 63 bytes.
const longest = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"

func part(profile string) pool.Kind {
	return pool.Kind{Type: gpu.KindMIG, Product: "NVIDIA H100 80GB HBM3", Profile: profile, GPUs: 1}
}

func TestBuild_ModelsProfilesAndGroups_OneClassEach(t *testing.T) {
	classes, problems := Build(map[pool.Kind]int{
		whole("NVIDIA H100 80GB HBM3"): 8, whole("Tesla V100-SXM2-16GB"): 1, whole(longest): 1, part("1g.10gb"): 56, part("1g.10gb+me"): 56, part("1g.24gb-me"): 4,
		{Type: gpu.KindMonitor, Product: "NVIDIA H100 80GB HBM3", GPUs: 1}: 8, {Type: gpu.KindGroup, Product: "NVIDIA H100 80GB HBM3", GPUs: 4}: 2,
		{Type: gpu.KindGroup, Product: "Tesla V100-SXM2-16GB", GPUs: 4}: 2, {Type: gpu.KindGroup, GPUs: 1}: 1,
	}, nil, options)
	if len(problems) > 0 {
		t.Error(problems)
	}
	got := map[string]string{}
	for _, c := range classes {
		resource := ""
		if c.Spec.ExtendedResourceName != nil {
			resource = *c.Spec.ExtendedResourceName
		}
		got[c.Name] = resource
		r, err := selector.Read(c.Spec.Selectors[0].CEL.Expression)
		if err != nil || r.Driver != "gpu.nvidia.com" || !options.Ours(c.DeviceClass) {
			t.Errorf("%s: %+v, %v", c.Name, r, err)
		}
	}
	if diff := cmp.Diff(map[string]string{
		"nvidia-h100-80gb-hbm3.gpu.nvidia.com": "", "tesla-v100-sxm2-16gb.gpu.nvidia.com": "", "nvlink-4.gpu.nvidia.com": "",
		"nvidia-rtx-pro-6000-blackwell-workstation-c5a144.gpu.nvidia.com": "",
		"mig-1g.10gb.nvidia.com": "nvidia.com/mig-1g.10gb", "mig-1g.10gb.me.nvidia.com": "nvidia.com/mig-1g.10gb.me",
		"mig-1g.24gb-no-me.nvidia.com": "nvidia.com/mig-1g.24gb-me",
	}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestBuild_RenamedShares_ClassWithTheDevicePluginsName has shares that the device plugin's settings rename.
func TestBuild_RenamedShares_ClassWithTheDevicePluginsName(t *testing.T) {
	publishers := map[pool.Kind]int{
		{Type: gpu.KindGPU, GPUs: 1, Renamed: true}:                        2,
		{Type: gpu.KindMIG, Profile: "1g.10gb+me", GPUs: 1, Renamed: true}: 1,
		{Type: gpu.KindMIG, Profile: "nonsense", GPUs: 1, Renamed: true}:   1,
		{Type: gpu.KindGroup, GPUs: 4, Renamed: true}:                      1,
		{Type: gpu.KindGPU, Product: "Shared", GPUs: 1}:                    1,
	}
	classes, problems := Build(publishers, nil, options)
	if len(problems) > 0 {
		t.Error(problems)
	}
	got := map[string][]string{}
	for _, c := range classes {
		r, err := selector.Read(c.Spec.Selectors[0].CEL.Expression)
		if err != nil || !r.Complete {
			t.Errorf("%s: %+v, %v", c.Name, r, err)
		}
		got[c.Name] = append([]string{ptr.Deref(c.Spec.ExtendedResourceName, ""), r.Type(options.Driver)},
			r.Required[selector.Name{Domain: options.Driver, ID: "profile"}]...)
	}
	if diff := cmp.Diff(map[string][]string{
		"shared.gpu.nvidia.com":            {"nvidia.com/gpu.shared", "gpu"},
		"mig-1g.10gb.me.shared.nvidia.com": {"nvidia.com/mig-1g.10gb.me.shared", "mig", "1g.10gb+me"},
		"model-shared.gpu.nvidia.com":      {"", "gpu"},
	}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	o := options
	o.ResourcePrefix, o.Models = "", false
	if classes, _ := Build(publishers, nil, o); len(classes) != 0 {
		t.Errorf("without names of extended resources there are %v", classes)
	}
}

func TestModelName_Long_ShortenedToDistinctNames(t *testing.T) {
	seen := map[string]bool{}
	for _, product := range []string{longest, longest + "s", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", strings.Repeat("a ", 99)} {
		for _, prefix := range []string{"", "gpu-", strings.Repeat("p", 40)} {
			o := Options{Driver: "gpu.nvidia.com", ModelPrefix: prefix}
			name := o.modelName(product)
			if len(name) > 63 || seen[name] || name != o.modelName(product) || !strings.HasPrefix(name, prefix) || strings.Contains(name, "--") {
				t.Errorf("%q: %q", product, name)
			}
			seen[name] = true
		}
	}
	for _, o := range []Options{{Driver: "gpu." + strings.Repeat("d", 53)}, {Driver: "gpu.nvidia.com", ModelPrefix: strings.Repeat("p", 60)}} {
		if name := o.modelName("NVIDIA L40S"); name != o.ModelPrefix+"nvidia-l40s."+o.Driver {
			t.Errorf("without room for a hash: %q", name)
		}
	}
}

func TestBuild_InvalidName_ReportsProblem(t *testing.T) {
	classes, problems := Build(map[pool.Kind]int{whole("NVIDIA A100"): 1, whole("NVIDIA-A100"): 1, whole("…"): 1, whole(strings.Repeat("a", 64) + strings.Repeat("b ", 200)): 1}, nil, options)
	if len(classes) != 3 || len(problems) != 1 {
		t.Errorf("%d classes, problems %v", len(classes), problems)
	}
	if classes, _ := Build(map[pool.Kind]int{whole("NVIDIA A100"): 1, part("1g.5gb"): 1}, nil, Options{Driver: "gpu.nvidia.com"}); len(classes) != 0 {
		t.Error("disabled classes are built")
	}
}

// TestBuild_OneNameForTwoModels_ClassStays has a node that invents a model, as another node has a real one.
func TestBuild_OneNameForTwoModels_ClassStays(t *testing.T) {
	existing := map[string]*resourceapi.DeviceClass{}
	for _, models := range [][]string{{"NVIDIA-A100"}, {"NVIDIA A100", "NVIDIA-A100", "NVIDIA_A100"}} {
		publishers := map[pool.Kind]int{}
		for _, m := range models {
			publishers[whole(m)] = 1
		}
		classes, problems := Build(publishers, existing, options)
		if len(classes) != len(models) || len(problems) > 0 || classes[0].Name != "nvidia-a100.gpu.nvidia.com" || !strings.Contains(classes[0].Spec.Selectors[0].CEL.Expression, `"NVIDIA-A100"`) {
			t.Errorf("%q: %v, problems %v", models, classes[0].Spec, problems)
		}
		existing[classes[0].Name] = classes[0].DeviceClass
	}
	if classes, _ := Build(map[pool.Kind]int{whole("NVIDIA-A100"): 1, whole("NVIDIA A100"): 2}, existing, options); !strings.Contains(classes[0].Spec.Selectors[0].CEL.Expression, `"NVIDIA A100"`) {
		t.Errorf("the model of more nodes has no class: %v", classes[0].Spec)
	}
}

func TestChanged_Difference_OnlySpecAndOwnLabels(t *testing.T) {
	classes, _ := Build(map[pool.Kind]int{part("1g.10gb"): 1}, nil, options)
	want := classes[0].DeviceClass
	is := want.DeepCopy()
	is.ResourceVersion, is.UID, is.Labels["team"] = "7", "u", "ml"
	if _, changed := Changed(is, want, true); changed {
		t.Error("additions of other programs count as a change")
	}
	is.Spec.ExtendedResourceName = nil
	if _, changed := Changed(is, want, false); changed {
		t.Error("a field that the server drops counts as a change")
	}
	if out, changed := Changed(is, want, true); !changed || *out.Spec.ExtendedResourceName != "nvidia.com/mig-1g.10gb" || out.Labels["team"] != "ml" || out.ResourceVersion != "7" {
		t.Errorf("%v, %+v", changed, out)
	}
	is.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "true"}}}
	if _, changed := Changed(is, want, false); !changed {
		t.Error("a changed selector is not restored")
	}
}

var otherClass = regexp.MustCompile(`^(mig|nvlink|monitor)[-.]`)

// TestBuild_ModelsNamedLikeOtherClasses_EachHasItsOwn has models that differ in what class names leave out, and models,
// profiles and sizes with the names of other classes, published by more nodes than the others.
func TestBuild_ModelsNamedLikeOtherClasses_EachHasItsOwn(t *testing.T) {
	models := []string{
		"NVIDIA A100", "nvidia a100", "NVIDIA-A100", "NVIDIA  A100!", "NVIDIA A100 ", "nvidia_a100", "nvidia-a100-c5a144", "nvlink-8", "NVLink 8", "nvlink", "NVLINK!", "nvlink-4-x",
		"mig-1g-10gb", "MIG 1g.10gb", "mig", "monitor", "Monitor", "model-nvlink-8", "gpu", "8", "link-8", "ink 8", "onitor", longest, strings.ToLower(longest), longest + "!", longest + "s",
		strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("A", 64) + ".", strings.Repeat("a", 300), "mig-1g.10gb.nvidia.com", "ｎｖｌｉｎｋ-8", "nvlink-8\n",
	}
	publishers := map[pool.Kind]int{}
	for i, m := range models {
		publishers[whole(m)] = 5 + i%3
	}
	profiles := []string{"1g.10gb", "1g.10gb+me", "1g.10gb-me", "1g.10gb+me.all", "1g.10gb+gpu"}
	for _, text := range append(profiles, "x", "x.gpu", "1g.10gb.me", "1g.10gb+me+all", "1g.10gb-no-me", "1G.10GB", "", "1g.10gb\n", "/") {
		publishers[part(text)] = 1
	}
	for _, size := range []int{2, 4, 8} {
		publishers[pool.Kind{Type: gpu.KindGroup, Product: "NVIDIA A100", GPUs: size}] = 1
	}
	for _, driver := range []string{"gpu.nvidia.com", "dra.example.com", "gpu.gpu.nvidia.com"} {
		for _, prefix := range []string{"", "gpu-", "nvl", "nv", "nvlink-", "mig-", "m", "mi", strings.Repeat("p", 30)} {
			o := options
			o.Driver, o.ModelPrefix, o.GPUs = driver, prefix, true
			classes, problems := Build(publishers, nil, o)
			domain := strings.TrimPrefix(driver, "gpu.")
			want := map[string]string{driver: "", "nvlink-2." + driver: "2", "nvlink-4." + driver: "4", "nvlink-8." + driver: "8"}
			for _, p := range profiles {
				want["mig-"+ProfileLabel(p)+"."+domain] = `"` + p + `"`
			}
			seen := map[string]bool{}
			for _, c := range classes {
				expression := c.Spec.Selectors[0].CEL.Expression
				if seen[c.Name] {
					t.Errorf("%s, %q: two classes %s", driver, prefix, c.Name)
				}
				seen[c.Name] = true
				if value, ours := want[c.Name]; ours {
					if !strings.HasSuffix(expression, value) {
						t.Errorf("%s, %q: %s selects %s", driver, prefix, c.Name, expression)
					}
					continue
				}
				if !strings.Contains(expression, ".productName == ") || otherClass.MatchString(c.Name) {
					t.Errorf("%s, %q: %s selects %s", driver, prefix, c.Name, expression)
				}
			}
			if want := len(want) + len(models); len(classes)+len(problems) != want || len(problems) > 0 {
				t.Errorf("%s, %q: %d classes and problems %v, want %d classes", driver, prefix, len(classes), problems, want)
			}
		}
	}
}
