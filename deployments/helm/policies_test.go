// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"
)

// object returns an API object as a policy receives it.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPolicies_Pods_DeniedOrAllowed(t *testing.T) {
	p := loadPolicies(t, "policies.yaml", "--values", "testdata/values/policies.yaml")["gpu-pods"]
	const queue, tolerates = "{labels: {kueue.x-k8s.io/queue-name: a}}", "[{key: nvidia.com/gpu, operator: Exists}]"
	for name, c := range map[string]struct {
		metadata, tolerations, containers string
		matched                           bool
		denied                            string
	}{
		"no GPUs":                        {"{}", "[]", "[{}, {resources: {}}, {resources: {limits: {cpu: '1'}}}]", false, ""},
		"as it should be":                {queue, tolerates, "[{resources: {limits: {nvidia.com/gpu: '4'}}}]", true, ""},
		"it tolerates everything":        {queue, "[{operator: Exists}]", "[{resources: {limits: {nvidia.com/gpu: '1'}}}]", true, ""},
		"a partition":                    {queue, tolerates, "[{resources: {limits: {nvidia.com/mig-1g.10gb: '7'}}}]", true, ""},
		"no toleration":                  {queue, "[]", "[{resources: {limits: {nvidia.com/gpu: '1'}}}]", true, "add to its tolerations {key: nvidia.com/gpu, operator: Exists}"},
		"another toleration":             {queue, "[{key: other, operator: Exists}]", "[{resources: {limits: {nvidia.com/gpu: '1'}}}]", true, "does not tolerate"},
		"no queue":                       {"{}", tolerates, "[{resources: {limits: {nvidia.com/gpu: '1'}}}]", true, "give it the label kueue.x-k8s.io/queue-name"},
		"a partition without queue":      {"{labels: {a: b}}", tolerates, "[{resources: {limits: {nvidia.com/mig-1g.10gb: '1'}}}]", true, "names no queue"},
		"a toleration of a value":        {queue, "[{key: nvidia.com/gpu, operator: Equal, value: a}]", "[{resources: {limits: {nvidia.com/gpu: '1'}}}]", true, "does not tolerate"},
		"the taint's usual value":        {queue, "[{key: nvidia.com/gpu, operator: Equal, value: present, effect: NoSchedule}]", "[{resources: {limits: {nvidia.com/gpu: '1'}}}]", true, ""},
		"a toleration of evictions":      {queue, "[{key: nvidia.com/gpu, operator: Exists, effect: NoExecute}]", "[{resources: {limits: {nvidia.com/gpu: '1'}}}]", true, "does not tolerate"},
		"a toleration of the taint":      {queue, "[{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]", "[{resources: {limits: {nvidia.com/gpu: '1'}}}]", true, ""},
		"by the class":                   {queue, tolerates, "[{resources: {limits: {deviceclass.resource.kubernetes.io/gpu.nvidia.com: '5'}}}]", true, "asks for 5 GPUs"},
		"by the model's class":           {queue, tolerates, "[{resources: {limits: {deviceclass.resource.kubernetes.io/nvidia-l40s.gpu.nvidia.com: '5', cpu: 100m}}}]", true, "asks for 5 GPUs"},
		"in two ways":                    {queue, tolerates, "[{resources: {limits: {deviceclass.resource.kubernetes.io/gpu.nvidia.com: '3', nvidia.com/gpu: '2'}}}]", true, "asks for 5 GPUs"},
		"groups by the class":            {queue, tolerates, "[{resources: {limits: {deviceclass.resource.kubernetes.io/nvlink.gpu.nvidia.com: '1'}}}]", true, "GPUs, and 4 are allowed"},
		"a group of four":                {queue, tolerates, "[{resources: {limits: {deviceclass.resource.kubernetes.io/nvlink-4.gpu.nvidia.com: '1'}}}]", true, ""},
		"groups of four":                 {queue, tolerates, "[{resources: {limits: {deviceclass.resource.kubernetes.io/nvlink-4.gpu.nvidia.com: '2'}}}]", true, "asks for 8 GPUs"},
		"a model named like a partition": {queue, tolerates, "[{resources: {limits: {deviceclass.resource.kubernetes.io/mig-x.gpu.nvidia.com: '5'}}}]", true, "asks for 5 GPUs"},
		"a model named like a group":     {queue, tolerates, "[{resources: {limits: {deviceclass.resource.kubernetes.io/nvlink-8x.gpu.nvidia.com: '1'}}}]", true, ""},
		"the class, without queue":       {"{}", tolerates, "[{resources: {limits: {deviceclass.resource.kubernetes.io/gpu.nvidia.com: '1'}}}]", true, "names no queue"},
		"partitions by the class":        {queue, tolerates, "[{resources: {limits: {deviceclass.resource.kubernetes.io/mig-1g.10gb.nvidia.com: '7'}}}]", true, ""},
		"partitions, without queue":      {"{}", tolerates, "[{resources: {limits: {deviceclass.resource.kubernetes.io/mig.nvidia.com: '7'}}}]", true, "names no queue"},
		"another driver's class":         {"{}", "[]", "[{resources: {limits: {deviceclass.resource.kubernetes.io/nic.example.com: '7'}}}]", false, ""},
		"an init container":              {queue, tolerates, "[{}], initContainers: [{resources: {limits: {nvidia.com/gpu: '5'}}}]", true, "asks for 5 GPUs"},
		"init containers in turn":        {queue, tolerates, "[{resources: {limits: {nvidia.com/gpu: '4'}}}], initContainers: [{resources: {limits: {nvidia.com/gpu: '4'}}}, {resources: {limits: {nvidia.com/gpu: '3'}}}]", true, ""},
		"a sidecar":                      {queue, tolerates, "[{resources: {limits: {nvidia.com/gpu: '3'}}}], initContainers: [{restartPolicy: Always, resources: {limits: {nvidia.com/gpu: '2'}}}]", true, "asks for 5 GPUs"},
		"renamed shares":                 {queue, tolerates, "[{resources: {limits: {nvidia.com/gpu.shared: '5'}}}]", true, "asks for 5 GPUs"},
		"too many":                       {queue, tolerates, "[{resources: {limits: {nvidia.com/gpu: '3'}}}, {resources: {limits: {nvidia.com/gpu: '2'}}}]", true, "asks for 5 GPUs, and 4 are allowed"},
	} {
		in := map[string]any{"object": object(t, "{metadata: "+c.metadata+", spec: {tolerations: "+c.tolerations+", containers: "+c.containers+"}}")}
		matched, denied := p.decide(t, in)
		if matched != c.matched || (denied == "") != (c.denied == "") || !strings.Contains(denied, c.denied) {
			t.Errorf("%s: matched %v, denied %q; want %v, %q", name, matched, denied, c.matched, c.denied)
		}
	}
}

// TestPolicies_PodsWithNodeName_DeniedIfTheyAskForGPUs has pods that no scheduler places, in the form of an API server.
func TestPolicies_PodsWithNodeName_DeniedIfTheyAskForGPUs(t *testing.T) {
	gpus := func(name, n string) string {
		return "containers: [{resources: {limits: {" + name + ": '" + n + "'}, requests: {" + name + ": '" + n + "'}}}]"
	}
	const class = "deviceclass.resource.kubernetes.io/"
	none := []string{"--set", "deviceClasses.gpu.extendedResourceName=,deviceClasses.mig.extendedResourcePrefix="}
	second := []string{"--values", "testdata/values/renamed.yaml"}
	for _, c := range []struct {
		name, metadata, spec, labels string
		args                         []string
		matched, denied              bool
	}{
		{"a GPU", "{}", "nodeName: n1, " + gpus("nvidia.com/gpu", "1"), "{}", nil, true, true},
		{"an amount that takes long to compare", "{}", "nodeName: n1, " + gpus("nvidia.com/gpu", "1e999999999"), "{}", nil, true, true},
		{"a fraction", "{}", "nodeName: n1, " + gpus("nvidia.com/gpu", "500m"), "{}", nil, true, true},
		{"a partition", "{}", "nodeName: n1, " + gpus("nvidia.com/mig-1g.10gb", "1"), "{}", nil, true, true},
		{"a renamed share", "{}", "nodeName: n1, " + gpus("nvidia.com/gpu.shared", "1"), "{}", nil, true, true},
		{"the class", "{}", "nodeName: n1, " + gpus(class+"gpu.nvidia.com", "1"), "{}", nil, true, true},
		{"the class, in requests only", "{}", "nodeName: n1, containers: [{resources: {requests: {" + class + "gpu.nvidia.com: '1'}}}]", "{}", nil, true, true},
		{"a model's class", "{}", "nodeName: n1, " + gpus(class+"tesla-t4.gpu.nvidia.com", "1"), "{}", nil, true, true},
		{"a profile's class", "{}", "nodeName: n1, " + gpus(class+"mig-1g.10gb.nvidia.com", "1"), "{}", nil, true, true},
		{"all partitions' class", "{}", "nodeName: n1, " + gpus(class+"mig.nvidia.com", "1"), "{}", nil, true, true},
		{"an init container", "{}", "nodeName: n1, containers: [{}], initContainers: [{}, {resources: {limits: {nvidia.com/gpu: '2'}}}]", "{}", nil, true, true},
		{"the second container", "{}", "nodeName: n1, containers: [{resources: {limits: {cpu: '1'}}}, {resources: {limits: {cpu: 100m, nvidia.com/gpu: '1'}}}]", "{}", nil, true, true},
		{"an ephemeral container has no resources", "{}", "nodeName: n1, containers: [{}], ephemeralContainers: [{}]", "{}", nil, false, false},
		{"no node", "{}", gpus("nvidia.com/gpu", "1"), "{}", nil, false, false},
		{"a DaemonSet's pod", "{}", "affinity: {nodeAffinity: {}}, " + gpus("nvidia.com/gpu", "1"), "{}", nil, false, false},
		{"an empty node", "{}", "nodeName: '', " + gpus("nvidia.com/gpu", "1"), "{}", nil, false, false},
		{"no GPU", "{}", "nodeName: n1, containers: [{}, {resources: {}}, {resources: {limits: {cpu: '1', example.com/gpu: '1'}}}]", "{}", nil, false, false},
		{"none of GPUs", "{}", "nodeName: n1, " + gpus("nvidia.com/gpu", "0"), "{}", nil, false, false},
		{"another driver's class", "{}", "nodeName: n1, " + gpus(class+"nic.example.com", "1"), "{}", nil, false, false},
		{"a name that only begins alike", "{}", "nodeName: n1, " + gpus("nvidia.com/gpux", "1"), "{}", nil, false, false},
		{"a mirror of a static pod", "{annotations: {kubernetes.io/config.mirror: a}}", "nodeName: n1, " + gpus("nvidia.com/gpu", "1"), "{}", nil, false, false},
		{"the GPU operator's check of a device plugin", "{labels: {app: nvidia-device-plugin-validator}}", "nodeName: n1, " + gpus("nvidia.com/gpu", "1"), "{}", nil, false, false},
		{"a namespace of a device plugin", "{}", "nodeName: n1, " + gpus("nvidia.com/gpu", "1"), "{gpu-dra-driver/node-name: 'true'}", nil, true, false},
		{"a namespace that is no longer one", "{}", "nodeName: n1, " + gpus("nvidia.com/gpu", "1"), "{gpu-dra-driver/node-name: 'false'}", nil, true, true},
		{"no namespace may", "{}", "nodeName: n1, " + gpus("nvidia.com/gpu", "1"), "{gpu-dra-driver/node-name: 'true'}", []string{"--set", "policies.nodeName.namespaceLabel="}, true, true},
		{"names that only a device plugin serves", "{}", "nodeName: n1, " + gpus("nvidia.com/gpu", "1"), "{}", none, false, false},
		{"partitions that only a device plugin serves", "{}", "nodeName: n1, " + gpus("nvidia.com/mig-1g.10gb", "1"), "{}", none, false, false},
		{"the class without another name", "{}", "nodeName: n1, " + gpus(class+"gpu.nvidia.com", "1"), "{}", none, true, true},
		{"a second driver's class", "{}", "nodeName: n1, " + gpus(class+"gpu.example.com", "1"), "{}", second, true, true},
		{"the first driver's class, for the second", "{}", "nodeName: n1, " + gpus(class+"gpu.nvidia.com", "1"), "{}", second, false, false},
		{"values of an earlier release", "{}", "nodeName: n1, " + gpus("nvidia.com/gpu", "1"), "{}", []string{"--set", "policies.nodeName=null"}, true, true},
	} {
		var p policy
		for name, one := range loadPolicies(t, "policies.yaml", c.args...) {
			if strings.HasSuffix(name, "gpu-nodename") {
				p = one
			}
		}
		matched, denied := p.decide(t, map[string]any{
			"object":          object(t, "{metadata: "+c.metadata+", spec: {"+c.spec+"}}"),
			"namespaceObject": object(t, "{metadata: {labels: "+c.labels+"}}"),
		})
		if matched != c.matched || (denied != "") != c.denied {
			t.Errorf("%s: matched %v, denied %q; want %v, %v", c.name, matched, denied, c.matched, c.denied)
		}
		if c.denied && !strings.Contains(denied, "write nodeSelector {kubernetes.io/hostname: n1}") {
			t.Errorf("%s: %q does not say what to write", c.name, denied)
		}
	}
}

// TestPolicies_AdminAccess_ListedNamespacesOnly has namespaces before and after a request.
func TestPolicies_AdminAccess_ListedNamespacesOnly(t *testing.T) {
	p := loadPolicies(t, "policies.yaml", "--values", "testdata/values/policies.yaml")["admin-access"]
	const label = "resource.kubernetes.io/admin-access: "
	for name, c := range map[string]struct {
		before, namespace, labels string
		matched, denied           bool
	}{
		"listed, created":           {"none", "monitoring", label + "'true'", true, false},
		"listed, labelled":          {"", "monitoring", label + "'true'", true, false},
		"another, created":          {"none", "team-a", label + "'true'", true, true},
		"another, labelled":         {"a: b", "team-a", label + "'true'", true, true},
		"another, of another value": {label + "'false'", "team-a", label + "'true'", true, true},
		"another, had it before":    {label + "'true'", "team-a", label + "'true', a: b", false, false},
		"another, loses it":         {label + "'true'", "team-a", "", false, false},
		"another value":             {"", "team-a", label + "'yes'", false, false},
		"no label":                  {"none", "team-a", "a: b", false, false},
	} {
		in := map[string]any{"oldObject": nil, "object": object(t, "{metadata: {name: "+c.namespace+", labels: {"+c.labels+"}}}")}
		if c.before != "none" {
			in["oldObject"] = object(t, "{metadata: {name: "+c.namespace+", labels: {"+c.before+"}}}")
		}
		if matched, denied := p.decide(t, in); matched != c.matched || (denied != "") != c.denied {
			t.Errorf("%s: matched %v, denied %q; want %v, %v", name, matched, denied, c.matched, c.denied)
		}
	}
}

// TestPolicies_NodeNameActions_Rendered has the ways to soften the policy, and to be without it.
func TestPolicies_NodeNameActions_Rendered(t *testing.T) {
	for set, want := range map[string]string{
		"policies.actions={Warn}":           `["Deny"]`, // It has actions of its own.
		"policies.nodeName.actions={Warn}":  `["Warn"]`,
		"policies.nodeName.actions={Audit}": `["Audit"]`,
		"policies.nodeName=null":            `["Deny"]`,
		"policies.nodeName.actions=null":    `["Deny"]`,
		"resources.gpus.enabled=false":      "",
	} {
		text := render(t, chart, "--set", set)
		if want == "" {
			if strings.Contains(text, "gpu-nodename") {
				t.Errorf("%s: the policy is rendered", set)
			}
		} else if !strings.Contains(text, "policyName: gpu-dra-driver-gpu-nodename\n  validationActions: "+want) {
			t.Errorf("%s: the policy does not have the actions %s", set, want)
		}
	}
	if strings.Contains(render(t, chart, "--set-json", "policies.nodeName.actions=[]"), "gpu-nodename") {
		t.Error("without actions, the policy is rendered")
	}
}

func TestPolicies_Claims_DeniedOrAllowed(t *testing.T) {
	p := loadPolicies(t, "policies.yaml", "--values", "testdata/values/policies.yaml")["gpu-claims"]
	group := func(selector string) string {
		return "[{name: a, exactly: {deviceClassName: nvlink.gpu.nvidia.com, selectors: [{cel: {expression: \"" + selector + "\"}}]}}]"
	}
	const fraction = "[{name: a, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 10Gi}}}}]"
	const gpuCount = "device.attributes['gpu.nvidia.com'].gpuCount"
	for name, c := range map[string]struct {
		requests, labels string
		denied           string
	}{
		"nothing":                        {"[]", "{}", ""},
		"a GPU":                          {"[{name: a, exactly: {deviceClassName: gpu.nvidia.com}}]", "{}", ""},
		"four":                           {"[{name: a, exactly: {deviceClassName: gpu.nvidia.com, count: 3}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com}}]", "{}", ""},
		"five":                           {"[{name: a, exactly: {deviceClassName: gpu.nvidia.com, count: 3}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]", "{}", "more than 4 GPUs"},
		"all there are":                  {"[{name: a, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}}]", "{}", "more than 4 GPUs"},
		"five or one":                    {"[{name: a, firstAvailable: [{name: x, deviceClassName: gpu.nvidia.com, count: 5}, {name: y, deviceClassName: gpu.nvidia.com}]}]", "{}", "more than 4 GPUs"},
		"five of a model":                {"[{name: a, exactly: {deviceClassName: nvidia-l40s.gpu.nvidia.com, count: 5}}]", "{}", "more than 4 GPUs"},
		"four of a model":                {"[{name: a, exactly: {deviceClassName: nvidia-l40s.gpu.nvidia.com, count: 4}}]", "{}", ""},
		"five of two models":             {"[{name: a, exactly: {deviceClassName: nvidia-l40s.gpu.nvidia.com, count: 3}}, {name: b, exactly: {deviceClassName: tesla-t4.gpu.nvidia.com, count: 2}}]", "{}", "more than 4 GPUs"},
		"all monitors":                   {"[{name: a, exactly: {deviceClassName: monitor.gpu.nvidia.com, allocationMode: All}}]", "{}", ""},
		"all partitions of a profile":    {"[{name: a, exactly: {deviceClassName: mig-1g.10gb.nvidia.com, allocationMode: All}}]", "{}", ""},
		"seven partitions":               {"[{name: a, exactly: {deviceClassName: mig.nvidia.com, count: 7}}]", "{}", ""},
		"another driver's":               {"[{name: a, exactly: {deviceClassName: gpu.example.com, count: 9, capacity: {requests: {memory: 1Gi}}}}]", "{}", ""},
		"a group of four":                {group(gpuCount + " == 4"), "{}", ""},
		"a group of eight":               {group(gpuCount + "==8"), "{}", "more than 4 GPUs"},
		"a group of four or eight":       {group(gpuCount + " == 4 || " + gpuCount + " == 8"), "{}", "more than 4 GPUs"},
		"a group of two and more":        {group(gpuCount + " == 2 || " + gpuCount + " > 4"), "{}", "more than 4 GPUs"},
		"a group of four of a model":     {group("device.driver == 'gpu.nvidia.com' && has(device.attributes['gpu.nvidia.com'].productName) && device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3' && " + gpuCount + " == 4"), "{}", ""},
		"a group of eight of a model":    {group(gpuCount + " == 8 && device.attributes['gpu.nvidia.com'].productName != 'gpuCount 2'"), "{}", "more than 4 GPUs"},
		"a model named like a partition": {"[{name: a, exactly: {deviceClassName: mig-x.gpu.nvidia.com, count: 5}}]", "{}", "more than 4 GPUs"},
		"a group of any size":            {group(gpuCount + " > 1"), "{}", "without saying of how many"},
		"a group without selector":       {"[{name: a, exactly: {deviceClassName: nvlink.gpu.nvidia.com}}]", "{}", "without saying of how many"},
		"the class of four":              {"[{name: a, exactly: {deviceClassName: nvlink-4.gpu.nvidia.com}}]", "{}", ""},
		"the class of four, twice":       {"[{name: a, exactly: {deviceClassName: nvlink-4.gpu.nvidia.com, count: 2}}]", "{}", "more than 4 GPUs"},
		"the class of eight":             {"[{name: a, firstAvailable: [{name: x, deviceClassName: nvlink-8.gpu.nvidia.com}]}]", "{}", "more than 4 GPUs"},
		"a fraction":                     {fraction, "{}", "namespaces with the label gpu-dra-driver/fractions"},
		"a fraction where it may be":     {fraction, "{gpu-dra-driver/fractions: 'true'}", ""},
		"a fraction where it may not":    {fraction, "{gpu-dra-driver/fractions: 'no'}", "ask for a whole GPU or a MIG partition"},
		"a fraction as an alternative":   {"[{name: a, firstAvailable: [{name: x, deviceClassName: gpu.nvidia.com}, {name: y, deviceClassName: mig-3g.40gb.nvidia.com, capacity: {requests: {memory: 1Gi}}}]}]", "{}", "fraction"},
	} {
		for kind, wrap := range map[string]string{"claim": "{spec: {devices: {requests: %}}}", "template": "{spec: {spec: {devices: {requests: %}}}}"} {
			_, denied := p.decide(t, map[string]any{
				"object": object(t, strings.Replace(wrap, "%", c.requests, 1)), "namespaceObject": object(t, "{metadata: {labels: "+c.labels+"}}"),
			})
			if (denied == "") != (c.denied == "") || !strings.Contains(denied, c.denied) {
				t.Errorf("%s, as a %s: denied %q, want %q", name, kind, denied, c.denied)
			}
		}
	}
	if _, denied := p.decide(t, map[string]any{"object": object(t, "{spec: {}}"), "namespaceObject": object(t, "{metadata: {}}")}); denied != "" {
		t.Errorf("a claim without devices: %q", denied)
	}
}

// TestPolicies_GroupsBySelector_NoneLargerThanAllowed generates selectors from parts that name sizes of groups. A selector
// that matches a group of more than four GPUs is denied, whatever sizes it names.
func TestPolicies_GroupsBySelector_NoneLargerThanAllowed(t *testing.T) {
	p := loadPolicies(t, "policies.yaml", "--values", "testdata/values/policies.yaml")["gpu-claims"]
	const attributes = `device.attributes["gpu.nvidia.com"]`
	const size = attributes + ".gpuCount"
	atoms := []string{
		size + " == 2", size + "==4", size + " == 8", "2 == " + size, size + " > 4", size + " >= 2", size + " != 2", size + " <= 4", size + " in [2, 8]", size + " == 1 + 7",
		attributes + `["gpuCount"] == 8`, `device.attributes["gpu.nvidia.com"]["gpu" + "Count"] == 8`, `has(` + size + `)`, "true", "false", `device.driver == "gpu.nvidia.com"`,
		attributes + `.productName == "x"`, attributes + `.productName != "gpuCount == 2"`, attributes + `.productName != "' && gpuCount == 2 && '"`,
		`"` + strings.ReplaceAll(size, `"`, `'`) + ` == 2" != ""`, `[2, 4, 8].exists(gpuCount, gpuCount == 2)`, `[8].exists(n, ` + size + ` == n)`,
		`cel.bind(gpuCount, 2, gpuCount == 2)`, `device.driver != """ && ` + strings.ReplaceAll(size, `"`, `'`) + ` == 2 && """`, `device.driver != 'a\' && ` + size + ` == 2 && \''`,
		size + " == 0x8", size + " == 8u || true", attributes + `.type == "nvlink-group"`, "// " + size + " == 2 &&\ntrue", "true // && " + size + " == 2",
		"device.attributes[\"other.example.com\"].?gpuCount.orValue(2) == 2", `dyn({"gpuCount": 2}).gpuCount == 2`,
	}
	forms := []string{"%s", "(%s)", "!(%s)", "%s && %s", "%s || %s", "(%s) && (%s)", "(%s) ? (%s) : true", "!(%s) && %s", "%s || %s && " + size + " == 2", size + " == 2 && %s || %s", "%s\n&&\t%s"}
	compiled := dracel.NewCache(5000, dracel.Features{})
	matches := func(expression string, gpus int64) bool {
		c := compiled.GetOrCompile(expression)
		if c.Error != nil {
			return false // The API server refuses it.
		}
		ok, _, err := c.DeviceMatches(t.Context(), dracel.Device{Driver: "gpu.nvidia.com", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type": {StringValue: new("nvlink-group")}, "productName": {StringValue: new("NVIDIA H100 80GB HBM3")}, "gpuCount": {IntValue: &gpus},
		}})
		return ok && err == nil
	}
	allowed, larger := 0, 0
	check := func(expressions ...string) {
		selectors := []any{}
		large := true
		for _, e := range expressions {
			selectors = append(selectors, map[string]any{"cel": map[string]any{"expression": e}})
			large = large && (matches(e, 8) || matches(e, 16))
		}
		_, denied := p.decide(t, map[string]any{
			"object": map[string]any{"spec": map[string]any{"devices": map[string]any{"requests": []any{map[string]any{
				"name": "r", "exactly": map[string]any{"deviceClassName": "nvlink.gpu.nvidia.com", "selectors": selectors}}}}}},
			"namespaceObject": map[string]any{"metadata": map[string]any{}},
		})
		if large {
			larger++
		}
		if denied == "" {
			allowed++
			if large {
				t.Errorf("%q is allowed, and matches a group of eight or sixteen", expressions)
			}
		}
	}
	for _, form := range forms {
		for _, a := range atoms {
			if strings.Count(form, "%s") == 1 {
				check(fmt.Sprintf(form, a))
				continue
			}
			for _, b := range atoms {
				check(fmt.Sprintf(form, a, b))
			}
		}
	}
	for _, a := range atoms {
		for _, b := range atoms {
			check(a, b)
		}
	}
	if allowed < 20 || larger < 100 {
		t.Errorf("%d selectors are allowed, %d match large groups", allowed, larger)
	}
}
