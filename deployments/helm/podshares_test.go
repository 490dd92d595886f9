// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/internal/testing/podsharestest"
)

// podShares are the policies of the chart for pods without a claim, as an API server evaluates them.
type podShares struct {
	change          *podsharestest.Policy
	validate, label policy
}

func loadPodShares(t *testing.T, args ...string) podShares {
	t.Helper()
	args = append([]string{
		"--set", "podShares.enabled=true", "--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
		"--show-only", "templates/podshares.yaml",
	}, args...)
	manifest := render(t, chart, args...)
	if len(args) == 6 {
		// make try reads it.
		golden := filepath.Join("testdata", "podshares.yaml")
		if *update {
			if err := os.WriteFile(golden, []byte(manifest), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if text, err := os.ReadFile(golden); err != nil || string(text) != manifest {
			t.Fatalf("%s differs from the chart (%v): run go test ./helm -run PodShares -update", golden, err)
		}
	}
	policies := policiesIn(t, policyEnv(t), manifest, "gpu-dra-driver-")
	out := podShares{validate: policies["pod-shares"], label: policies["pod-shares-label"]}
	var err error
	if out.change, err = podsharestest.Read(manifest); err != nil {
		t.Fatal(err)
	}
	return out
}

// admit returns the pod that the API server stores, or the text of its refusal.
func (p podShares) admit(t *testing.T, pod *corev1.Pod, namespaceLabels map[string]string) (*corev1.Pod, string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: namespaceLabels}}
	if p.matches(t, pod) {
		pod = p.patch(t, pod, namespace)
	}
	in := map[string]any{"object": asMap(t, pod), "namespaceObject": asMap(t, namespace), "request": map[string]any{}}
	_, denied := p.validate.decide(t, in)
	return pod, denied
}

func (p podShares) matches(t *testing.T, pod *corev1.Pod) bool {
	t.Helper()
	return p.validate.eval(t, p.validate.spec.MatchConditions[0].Expression, map[string]any{"object": asMap(t, pod)}) == true
}

func (p podShares) patch(t *testing.T, pod *corev1.Pod, namespace *corev1.Namespace) *corev1.Pod {
	t.Helper()
	out, err := p.change.Change(t.Context(), pod, namespace)
	if err != nil {
		t.Fatalf("%v\n%s", err, text(t, pod))
	}
	return out
}

func asMap(t *testing.T, o any) map[string]any {
	t.Helper()
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func text(t *testing.T, o any) string {
	t.Helper()
	out, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// asking is one way to ask for a share, with the template that it gets, or a part of the refusal. whole means whole GPUs.
type asking struct {
	annotations map[string]string
	// limits are the limits of each container that asks.
	limits corev1.ResourceList
	want   string
	denied string
	whole  bool
}

const (
	memory, compute        = "gpu.nvidia.com/memory", "gpu.nvidia.com/compute"
	fraction, megabytes    = "gpu-fraction", "gpu-memory"
	devices, containerName = "gpu-fraction-num-devices", "gpu-fraction-container-name"
)

// of returns limits of HAMi's resources, in the order of their names here.
func of(amounts ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i, name := range []corev1.ResourceName{"nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "nvidia.com/priority"} {
		if i < len(amounts) && amounts[i] != "" {
			out[name] = resource.MustParse(amounts[i])
		}
	}
	return out
}

const (
	wrongMemory  = "needs the annotation gpu.nvidia.com/memory with an amount of memory of 16Mi or more"
	wrongCompute = `percent of the SMs of a GPU, from "1" to "100"`
	wrongHAMi    = "nvidia.com/gpumem is a whole number of MiB from 16"
	wrongPart    = "gpu-fraction is a number above 0 and below 1"
	wrongMiB     = "gpu-memory is a whole number of MiB"
	eitherOf     = "need gpu-fraction or gpu-memory, and not both"
	timeSlicing  = "sharing: {strategy: TimeSlicing}"
)

// asks has each form with amounts of all kinds.
func asks() (out []asking) {
	for amount, want := range map[string]string{
		"10Gi": "10240mi", "16Mi": "16mi", "1.5Gi": "1536mi", "10G": "9537mi", "0.016Gi": "17mi", "85519761408": "81558mi", "999999Ti": "1048574951424mi", "1Ki": "",
		"15Mi": "", "0": "", "": "", "-1Gi": "", "10GB": "", "10 Gi": "", "1e9": "", "1e999999999": "", "9999999Ti": "", "ten": "", "10Gi\n": "",
	} {
		for percent, suffix := range map[string]string{"-": "", "25": "-compute-25", "100": "-compute-100", "1": "-compute-1", "0": "", "101": "", "": "", "1e2": "", "025": "", "50%": ""} {
			a := asking{annotations: map[string]string{memory: amount}, want: "gpu-share-" + want + suffix}
			if percent != "-" {
				a.annotations[compute] = percent
			}
			switch {
			case want == "":
				a.denied = wrongMemory
			case percent != "-" && suffix == "":
				a.denied = wrongCompute
			}
			out = append(out, a)
		}
	}
	out = append(out, asking{annotations: map[string]string{compute: "25"}, denied: wrongMemory})
	for value, want := range map[string]string{
		"0.5": "500m", ".5": "500m", "0.25": "250m", "0.125": "125m", "0.50000": "500m", "0.29": "290m", "0.999": "999m", "0.001": "1m",
		"0": "", "0.0": "", "1": "", "1.0": "", "1.5": "", "-0.5": "", "0.3333": "", "5e-1": "", "500m": "", "half": "", "": "",
	} {
		a := asking{annotations: map[string]string{fraction: value}, want: "gpu-share-" + want}
		if want == "" {
			a.denied = wrongPart
		}
		out = append(out, a)
	}
	for value, want := range map[string]string{"2000": "2000mi", "16": "16mi", "99": "99mi", "999999999": "999999999mi", "15": "", "0": "", "2Gi": "", "2000.5": "", "-1": "", "02000": "", "9999999999": "", "": ""} {
		a := asking{annotations: map[string]string{megabytes: value}, want: "gpu-share-" + want}
		if want == "" {
			a.denied = wrongMiB
		}
		out = append(out, a)
	}
	for number, ok := range map[string]bool{"1": true, "2": false, "0": false, "all": false} {
		part := asking{annotations: map[string]string{fraction: "0.5", devices: number}, want: "gpu-share-500m"}
		amount := asking{annotations: map[string]string{megabytes: "2000", devices: number}, want: "gpu-share-2000mi"}
		if !ok {
			part.denied = "count: " + number + ", capacity: {requests: {memory: MEMORY}}"
			amount.denied = "count: " + number + ", capacity: {requests: {memory: 2000Mi}}"
		}
		out = append(out, part, amount)
	}
	out = append(out,
		asking{annotations: map[string]string{devices: "2"}, denied: eitherOf},
		asking{annotations: map[string]string{fraction: "0.5", megabytes: "2000"}, denied: eitherOf},
		asking{annotations: map[string]string{fraction: "0.5", memory: "10Gi"}, denied: "in two ways"},
		asking{annotations: map[string]string{fraction: "0.5"}, limits: of("", "3000"), denied: "in two ways"},
		asking{annotations: map[string]string{memory: "10Gi"}, limits: of("1", "3000"), denied: "in two ways"},
		asking{annotations: map[string]string{fraction: "0.5"}, limits: of("1"), denied: "no container has the limit nvidia.com/gpu"},
		asking{annotations: map[string]string{memory: "10Gi"}, limits: of("1"), want: "gpu-share-10240mi"},
		asking{annotations: map[string]string{memory: "10Gi"}, limits: of("2"), denied: "count: 2, capacity: {requests: {memory: 10240Mi}}"},
	)
	for _, h := range []struct {
		amounts []string
		want    string
		denied  string
	}{
		{[]string{"1", "3000"}, "3000mi", ""},
		{[]string{"", "3000"}, "3000mi", ""},
		{[]string{"1", "3k"}, "3000mi", ""},
		{[]string{"1", "10240"}, "10240mi", ""},
		{[]string{"1", "3000", "", "30"}, "3000mi-compute-30", ""},
		{[]string{"1", "3000", "0", "0"}, "3000mi", ""},
		{[]string{"1", "", "50"}, "500m", ""},
		{[]string{"1", "0", "50", "30"}, "500m-compute-30", ""},
		{[]string{"1", "", "", "30"}, "1000m-compute-30", ""},
		{[]string{"1", "", "100", "30"}, "1000m-compute-30", ""},
		{[]string{"1", "", "100"}, "", ""},
		{[]string{"2", "", "100", "100"}, "", ""},
		{[]string{"8", "", "", "100"}, "", ""},
		{[]string{"", "", "100"}, "", ""},
		{[]string{"1", "3000", "", "100"}, "", ""},
		{[]string{"1", "0"}, "", ""},
		{[]string{"2", "3000"}, "", "count: 2, capacity: {requests: {memory: 3000Mi}}"},
		{[]string{"2", "", "50", "30"}, "", "count: 2, capacity: {requests: {memory: MEMORY}}"},
		{[]string{"0", "3000"}, "", timeSlicing},
		{[]string{"1", "15"}, "", wrongHAMi},
		{[]string{"1", "-3000"}, "", wrongHAMi},
		{[]string{"1", "500m"}, "", wrongHAMi},
		{[]string{"1", "", "101"}, "", wrongHAMi},
		{[]string{"1", "", "", "101"}, "", wrongHAMi},
		{[]string{"1", "", "", "2.5"}, "", wrongHAMi},
		{[]string{"1", "3000", "50"}, "", "nvidia.com/gpumem and nvidia.com/gpumem-percentage; keep one"},
		{[]string{"1", "3000", "", "", "0"}, "", "nvidia.com/priority has no counterpart"},
		{[]string{"1", "", "", "", "1"}, "", "nvidia.com/priority has no counterpart"},
	} {
		a := asking{limits: of(h.amounts...), want: "gpu-share-" + h.want, denied: h.denied, whole: h.want == "" && h.denied == ""}
		out = append(out, a)
	}
	for _, name := range []string{"use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid"} {
		out = append(out, asking{annotations: map[string]string{"nvidia.com/" + name: "A100"}, limits: of("2"), denied: "only a claim can do"})
	}
	return append(out,
		asking{annotations: map[string]string{"nvidia.com/vgpu-mode": "mig"}, limits: of("1", "8000"), denied: "MIG partitions have the classes mig.nvidia.com"},
		asking{annotations: map[string]string{"nvidia.com/vgpu-mode": "hami-core"}, limits: of("1", "8000"), want: "gpu-share-8000mi"},
		asking{annotations: map[string]string{"hami.io/gpu-scheduler-policy": "binpack"}, limits: of("1", "8000"), want: "gpu-share-8000mi"},
	)
}

// mix is a shape of pods: its containers, and which of them ask by limits. An annotation of KAI names a container, or none.
type mix struct {
	containers, inits, sidecars int
	named                       string
}

func mixes() (out []mix) {
	for containers := 1; containers <= 3; containers++ {
		for inits := range 3 {
			for sidecars := range 2 {
				for _, named := range []string{"", "c0", "i0", "s0", "none"} {
					if (named != "i0" || inits > 0) && (named != "s0" || sidecars > 0) {
						out = append(out, mix{containers, inits, sidecars, named})
					}
				}
			}
		}
	}
	return out
}

// pod returns a pod of the shape. Its containers are c0, c1 and so on, s0 is a sidecar and i0 another init container. Each has
// a limit and a claim of its own, which stay.
func (m mix) pod(a asking) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: maps.Clone(a.annotations)}}
	p.Spec.SchedulerName = "kai-scheduler"
	if m.named != "" && a.annotations != nil {
		p.Annotations[containerName] = m.named
	}
	container := func(name string) corev1.Container {
		limits := corev1.ResourceList{"cpu": resource.MustParse("1")}
		maps.Copy(limits, a.limits)
		return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: limits, Requests: maps.Clone(limits)}}
	}
	for i := range m.containers {
		p.Spec.Containers = append(p.Spec.Containers, container(fmt.Sprint("c", i)))
	}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "nic"}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "nic", ResourceClaimName: new("nic")}}
	for i := range m.sidecars {
		s := container(fmt.Sprint("s", i))
		s.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		p.Spec.InitContainers = append(p.Spec.InitContainers, s)
	}
	for i := range m.inits {
		p.Spec.InitContainers = append(p.Spec.InitContainers, container(fmt.Sprint("i", i)))
	}
	return p
}

// claims lists the template of each container, and whose claim it uses.
func claims(p *corev1.Pod) (out []string) {
	templates := map[string]string{}
	for _, c := range p.Spec.ResourceClaims {
		if c.ResourceClaimTemplateName != nil {
			templates[c.Name] = *c.ResourceClaimTemplateName
		}
	}
	for _, c := range slices.Concat(p.Spec.Containers, p.Spec.InitContainers) {
		for _, use := range c.Resources.Claims {
			if use.Name != "nic" {
				out = append(out, fmt.Sprintf("%s: %s %s", c.Name, use.Name, templates[use.Name]))
			}
		}
	}
	return out
}

// expected does what claims does, by the rules of the documentation: an init container uses the claim of the first container.
func (m mix) expected(a asking) (out []string, denied string) {
	if a.denied != "" {
		return nil, a.denied
	}
	kai := a.annotations[fraction]+a.annotations[megabytes] != ""
	index := 0
	use := func(name, owner string) { out = append(out, fmt.Sprintf("%s: gpu-share-%s %s", name, owner, a.want)) }
	for _, kind := range []struct {
		prefix string
		count  int
	}{{"c", m.containers}, {"s", m.sidecars}, {"i", m.inits}} {
		for i := range kind.count {
			name, owner := fmt.Sprint(kind.prefix, i), fmt.Sprint(index)
			if kind.prefix == "i" && !kai {
				owner = "0"
			}
			switch {
			case a.whole:
			case kai && name == cmp.Or(m.named, "c0"), !kai && len(a.limits) > 0:
				use(name, owner)
			case !kai && m.containers == 1 && name == "c0":
				use(name, owner)
			}
			index++
		}
	}
	if kai && len(out) == 0 {
		return nil, "no container of this pod has the name"
	}
	if !kai && !a.whole && len(a.limits) == 0 && m.containers > 1 {
		return nil, fmt.Sprintf("this pod has %d containers; give the limit nvidia.com/gpu: 1", m.containers)
	}
	return out, ""
}

// TestPodShares_EveryFormAndShape_ClaimOrRefusal compares the policies with the rules of docs/sharing.md.
func TestPodShares_EveryFormAndShape_ClaimOrRefusal(t *testing.T) {
	p := loadPodShares(t)
	cases := 0
	for _, a := range asks() {
		for n, m := range mixes() {
			// A refusal does not depend on much, and neither does one more annotation.
			if a.denied != "" && n%7 != 0 || len(a.annotations) > 1 && n%3 != 0 {
				continue
			}
			cases++
			given := m.pod(a)
			got, denied := p.admit(t, given, nil)
			want, refusal := m.expected(a)
			name := fmt.Sprintf("%v %v %+v", a.annotations, text(t, a.limits), m)
			if (denied != "") != (refusal != "") || !strings.Contains(denied, refusal) {
				t.Fatalf("%s: refused: %q, want %q", name, denied, refusal)
			}
			if denied != "" {
				if got.TypeMeta = given.TypeMeta; !equality.Semantic.DeepEqual(got, given) {
					t.Fatalf("%s: a refused pod is changed: %s", name, text(t, got))
				}
				continue
			}
			if strings.Join(claims(got), "\n") != strings.Join(want, "\n") {
				t.Fatalf("%s: claims\n%q, want\n%q", name, claims(got), want)
			}
			left := text(t, got)
			for _, word := range []string{"nvidia.com/gpumem", "gpucores", "gpu-fraction", "gpu-memory", memory, compute, "kai-scheduler"} {
				if strings.Contains(left, word) {
					t.Fatalf("%s: %s is left: %s", name, word, left)
				}
			}
			if strings.Contains(left, `"nvidia.com/gpu"`) != a.whole || strings.Count(left, `"cpu":"1"`) != strings.Count(text(t, given), `"cpu":"1"`) ||
				strings.Count(left, `"nic"`) != 3 || got.Labels["gpu.nvidia.com/pod-shares"] != "true" || p.matches(t, got) {
				t.Fatalf("%s: %s", name, left)
			}
		}
	}
	t.Logf("%d pods", cases)
}

// TestPodShares_PublicExamples_ClaimOrReason has the shapes of the examples in the repositories of HAMi and KAI.
func TestPodShares_PublicExamples_ClaimOrReason(t *testing.T) {
	p := loadPodShares(t)
	hami := func(limits string) string { return "{containers: [{name: c0, resources: {limits: {" + limits + "}}}]}" }
	kai := func(rest string) string {
		return "{schedulerName: kai-scheduler, containers: [{name: c0, image: a}" + rest
	}
	const gpus = "nvidia.com/gpu: 2"
	for name, c := range map[string]struct{ annotations, spec, want string }{
		"HAMi: a share":                     {"{}", hami("nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30"), "c0: gpu-share-0 gpu-share-3000mi-compute-30"},
		"HAMi: two GPUs":                    {"{}", hami(gpus), ""},
		"HAMi: one GPU":                     {"{}", hami("nvidia.com/gpu: 1"), ""},
		"HAMi: dynamic MIG":                 {"{nvidia.com/vgpu-mode: mig, hami.io/gpu-scheduler-policy: binpack}", hami(gpus + ", nvidia.com/gpumem: 8000"), "only a claim can do"},
		"HAMi: a Deployment":                {"{}", hami("nvidia.com/gpu: 1, nvidia.com/gpumem: 3000"), "c0: gpu-share-0 gpu-share-3000mi"},
		"HAMi: a MIG profile":               {"{}", hami("nvidia.com/mig-3g.20gb: 1"), ""},
		"HAMi: a type":                      {"{nvidia.com/use-gputype: 'A100,V100'}", hami(gpus), `productName.matches("A100|V100")`},
		"HAMi: not a type":                  {"{nvidia.com/nouse-gputype: '1080,2080'}", hami(gpus), "only a claim can do"},
		"HAMi: policies":                    {"{hami.io/node-scheduler-policy: spread, hami.io/gpu-scheduler-policy: binpack}", hami("nvidia.com/gpu: 1"), ""},
		"HAMi: a UUID":                      {"{nvidia.com/use-gpuuuid: GPU-a}", hami("nvidia.com/gpu: 1"), "only a claim can do"},
		"HAMi: not a UUID":                  {"{nvidia.com/nouse-gpuuuid: GPU-a}", hami(gpus), "only a claim can do"},
		"HAMi: exclusive":                   {"{}", hami(gpus + ", nvidia.com/gpumem-percentage: 100, nvidia.com/gpucores: 100"), ""},
		"HAMi: parts of two GPUs":           {"{}", hami(gpus + ", nvidia.com/gpumem-percentage: 50, nvidia.com/gpucores: 30"), "strategy: TimeSlicing"},
		"HAMi: 40 percent":                  {"{}", hami("nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 40, nvidia.com/gpucores: 60"), "c0: gpu-share-0 gpu-share-400m-compute-60"},
		"HAMi: 60 percent":                  {"{}", hami("nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 60, nvidia.com/gpucores: 40"), "c0: gpu-share-0 gpu-share-600m-compute-40"},
		"HAMi: vLLM on two":                 {"{}", hami("cpu: 8, memory: 20Gi, nvidia.com/gpu: 2, nvidia.com/gpumem-percentage: 30, nvidia.com/gpucores: 30"), "strategy: TimeSlicing"},
		"KAI: half":                         {"{gpu-fraction: '0.5'}", kai("]}"), "c0: gpu-share-0 gpu-share-500m"},
		"KAI: memory":                       {"{gpu-memory: '2000'}", kai("]}"), "c0: gpu-share-0 gpu-share-2000mi"},
		"KAI: another container":            {"{gpu-fraction: '0.5', gpu-fraction-container-name: work}", kai(", {name: work}, {name: more}]}"), "work: gpu-share-1 gpu-share-500m"},
		"KAI: an init container":            {"{gpu-fraction: '0.5', gpu-fraction-container-name: start}", kai("], initContainers: [{name: start}]}"), "start: gpu-share-1 gpu-share-500m"},
		"KAI: MPS":                          {"{gpu-fraction: '0.5', mps: 'true'}", kai("]}"), "c0: gpu-share-0 gpu-share-500m"},
		"KAI: whole GPUs":                   {"{}", "{schedulerName: kai-scheduler, " + hami("nvidia.com/gpu: 1")[1:], ""},
		"KAI: shares of two GPUs":           {"{gpu-fraction: '0.5', gpu-fraction-num-devices: '2'}", kai("]}"), "strategy: TimeSlicing"},
		"a pod with a node":                 {"{gpu-memory: '2000'}", kai("], nodeName: n1}"), "write nodeSelector {kubernetes.io/hostname: n1}"},
		"a pod with a claim of such a name": {"{gpu-memory: '2000'}", kai("], resourceClaims: [{name: gpu-share-0}]}"), "rename its own"},
	} {
		pod := &corev1.Pod{}
		if err := yaml.UnmarshalStrict([]byte("{metadata: {name: p, annotations: "+c.annotations+"}, spec: "+c.spec+"}"), pod); err != nil {
			t.Fatal(err)
		}
		got, denied := pod, ""
		if p.matches(t, pod) {
			got, denied = p.admit(t, pod, nil)
		}
		if result := strings.Join(append(claims(got), denied), ""); result != c.want && (denied == "" || !strings.Contains(denied, c.want)) {
			t.Errorf("%s: %q, want %q", name, result, c.want)
		}
		if denied == "" && slices.ContainsFunc([]string{"gpumem", "gpucores"}, func(w string) bool { return strings.Contains(text(t, got), w) }) {
			t.Errorf("%s: %s", name, text(t, got))
		}
	}
}

func TestPodShares_NamespaceWithoutFractionLabel_Refused(t *testing.T) {
	p := loadPodShares(t, "--set", "policies.fractionNamespaceLabel=gpu/fractions")
	pod := mix{containers: 1}.pod(asking{annotations: map[string]string{memory: "10Gi"}})
	if _, denied := p.admit(t, pod, nil); !strings.Contains(denied, `the label gpu/fractions: "true"`) {
		t.Errorf("%q", denied)
	}
	if got, denied := p.admit(t, pod, map[string]string{"gpu/fractions": "true"}); denied != "" || len(claims(got)) != 1 {
		t.Errorf("%q %q", claims(got), denied)
	}
}

// TestPodShares_Policies_TypeCheckAndMatch also has a renamed driver, and values of an earlier release.
func TestPodShares_Policies_TypeCheckAndMatch(t *testing.T) {
	for _, args := range [][]string{nil, {"--set", "driverName=gpu.example.com"}, {"--set", "podShares.replacedSchedulers=null"}, {"--set", "deviceClasses.gpu.extendedResourceName="}} {
		p := loadPodShares(t, args...).validate
		p.typeChecks(t)
		if !slices.ContainsFunc(p.spec.MatchConditions, isInstalled) || !strings.HasSuffix(text(t, p.spec.MatchConstraints.NamespaceSelector), `/pod-shares":"true"}}`) {
			t.Errorf("%q: %s", args, text(t, p.spec.MatchConstraints))
		}
	}
}

// TestPodShares_LabelInOtherNamespaces_Refused has pods that were not changed by the policy, so that the controller would write
// templates for whom may create pods only.
func TestPodShares_LabelInOtherNamespaces_Refused(t *testing.T) {
	p := loadPodShares(t).label
	p.typeChecks(t)
	if got := text(t, p.spec.MatchConstraints); !slices.ContainsFunc(p.spec.MatchConditions, isInstalled) ||
		!strings.Contains(got, `"operator":"NotIn","values":["true"]`) || !strings.Contains(got, `"operator":"Exists"`) {
		t.Errorf("it matches %s", got)
	}
	with, without := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"gpu.nvidia.com/pod-shares": "true"}}}, &corev1.Pod{}
	for name, c := range map[string]struct {
		operation string
		old       *corev1.Pod
		denied    bool
	}{
		"a new pod":                    {"CREATE", nil, true},
		"the label is added":           {"UPDATE", without, true},
		"the namespace lost its label": {"UPDATE", with, false},
	} {
		in := map[string]any{"object": asMap(t, with), "request": map[string]any{"operation": c.operation}, "oldObject": nil}
		if c.old != nil {
			in["oldObject"] = asMap(t, c.old)
		}
		if _, denied := p.decide(t, in); (denied != "") != c.denied {
			t.Errorf("%s: %q", name, denied)
		}
	}
}

// TestPodShares_PolicyAndController_BelongTogether has neither without the other, and notes for a server that has no such policy.
func TestPodShares_PolicyAndController_BelongTogether(t *testing.T) {
	capable := []string{"--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"}
	for name, c := range map[string]struct {
		args []string
		want bool
	}{
		"by default":             {capable, false},
		"enabled":                {append(capable, "--set", "podShares.enabled=true"), true},
		"an earlier release":     {append(capable, "--set", "podShares=null"), false},
		"an older API server":    {[]string{"--set", "podShares.enabled=true"}, false},
		"without the controller": {append(capable, "--set", "podShares.enabled=true", "--set", "controller.enabled=false"), false},
	} {
		got := render(t, chart, c.args...)
		for _, part := range []string{"-pod-shares\n", "name: POD_SHARES\n", "    resources: [resourceclaimtemplates]\n    verbs: [create, delete]\n"} {
			if strings.Contains(got, part) != c.want {
				t.Errorf("%s: %q: %v, want %v", name, strings.TrimSpace(part), !c.want, c.want)
			}
		}
	}
	if got := notes(t, "podShares.enabled=true"); !strings.Contains(got, "WARNING: podShares.enabled has no effect") {
		t.Errorf("notes: %s", got)
	}
}
