// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/profiles"
)

// newView is the view of a cluster with the given machines and the chart's classes.
func newView(t testing.TB, searchFor time.Duration, makes ...string) *ClusterView {
	t.Helper()
	return newViewOf(t, searchFor, sharing.Settings{}, makes...)
}

func newViewOf(t testing.TB, searchFor time.Duration, settings sharing.Settings, makes ...string) *ClusterView {
	t.Helper()
	shapes, pools := &pool.Shapes{}, []pool.Pool{}
	for i, profile := range makes {
		node := fmt.Sprintf("n%d", i)
		snapshot, err := slicetest.Scan(profile, node, 0)
		if err != nil {
			t.Fatal(err)
		}
		var all []*pool.Slice
		for _, s := range slicetest.Slices(snapshot, node, settings) {
			one := shapes.Trim(s)
			all = append(all, &one)
		}
		p := pool.Of(all)
		has := sharing.Node{Name: node, Settings: settings, Demand: sharingtest.NoDemand{}}
		if has.Groups(gpu.GPU{}) == sharing.NoPlacement {
			p = p.With(gpu.KindGroup)
		}
		if has.Monitors(gpu.GPU{}) == sharing.OnePlacement {
			p = p.With(gpu.KindMonitor)
		}
		pools = append(pools, p)
	}
	classes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for name, expression := range map[string]string{
		"gpu.nvidia.com":         `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'`,
		"mig.nvidia.com":         `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'`,
		"nvlink.gpu.nvidia.com":  `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'nvlink-group'`,
		"monitor.gpu.nvidia.com": `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'monitor'`,
		"nic.example.com":        `device.driver == 'nic.example.com'`,
		"any.example.com":        `true`,
	} {
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
		}}
		if name == "gpu.nvidia.com" {
			class.Spec.ExtendedResourceName = new("nvidia.com/gpu")
		}
		if err := classes.Add(class); err != nil {
			t.Fatal(err)
		}
	}
	v := NewClusterView("gpu.nvidia.com", ask.Asker{Evaluator: ask.NewEvaluator(), Classes: resourcelisters.NewDeviceClassLister(classes)}, pools)
	v.SearchFor, v.reviewFor = searchFor, patient
	return v
}

// patient lets the search end on a busy machine, too.
const patient = time.Minute

var resources = map[string]string{"ResourceClaim": "resourceclaims", "ResourceClaimTemplate": "resourceclaimtemplates", "DeviceClass": "deviceclasses"}

func asked(t testing.TB, object string) *admissionv1.AdmissionRequest {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(object))
	if err != nil {
		t.Fatal(err)
	}
	var meta metav1.TypeMeta
	if err := json.Unmarshal(data, &meta); err != nil {
		t.Fatal(err)
	}
	version := strings.TrimPrefix(meta.APIVersion, "resource.k8s.io/")
	return &admissionv1.AdmissionRequest{
		UID: "u", Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: data},
		Kind:     metav1.GroupVersionKind{Group: "resource.k8s.io", Version: version, Kind: meta.Kind},
		Resource: metav1.GroupVersionResource{Group: "resource.k8s.io", Version: version, Resource: resources[meta.Kind]},
	}
}

// claim is one whose devices are given as YAML, indented by two.
func claim(devices string) string {
	return "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec:\n devices:\n" + devices
}

// of is a claim for some devices of a class, more being added to the request.
func of(class, more string) string {
	return claim("  requests: [{name: r, exactly: {deviceClassName: " + class + more + "}}]")
}

// with gives a claim parameters.
func with(claim, parameters string) string {
	return claim + "\n  config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, " + parameters + "}}}]"
}

func selecting(expression string) string {
	return fmt.Sprintf(`, selectors: [{cel: {expression: %s}}]`, quote(expression))
}

func quote(s string) string { data, _ := json.Marshal(s); return string(data) }

// class is one with the given selectors.
func class(expressions ...string) string {
	out := "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: c}\nspec:\n selectors:\n"
	for _, e := range expressions {
		out += " - cel: {expression: " + quote(e) + "}\n"
	}
	return out
}

const (
	ours  = `device.driver == "gpu.nvidia.com" && `
	attr  = `device.attributes["gpu.nvidia.com"].`
	whole = ours + attr + `type == "gpu" && `
)

func TestReview_InvalidObject_IsDenied(t *testing.T) {
	v := newView(t, patient, "hgx-h100", "l40s-4")
	two := claim("  requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com}}]")
	nic := claim("  requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com}}, {name: nic, exactly: {deviceClassName: nic.example.com}}]")
	for name, c := range map[string]struct{ object, want string }{
		"a field that is not known": {with(of("gpu.nvidia.com", ""), "kind: GpuConfig, sharring: {}"),
			`spec.devices.config[0].opaque.parameters: Forbidden: unknown field "sharring"`},
		"a strategy that is not known": {with(of("gpu.nvidia.com", ""), "kind: GpuConfig, sharing: {strategy: Turns}"),
			`spec.devices.config[0].opaque.parameters.sharing.strategy: Forbidden: "Turns" is not known, use TimeSlicing or MPS`},
		"a percentage out of range": {with(of("gpu.nvidia.com", ""), "kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 200}}"),
			`parameters.sharing.mpsConfig.defaultActiveThreadPercentage: Forbidden: 200 is not a percentage, use 0 to 100`},
		"the config of another strategy": {with(of("gpu.nvidia.com", ""), "kind: GpuConfig, sharing: {strategy: MPS, timeSlicingConfig: {}}"), "leave it out"},
		"a kind of another driver":       {with(of("gpu.nvidia.com", ""), "kind: VfioDeviceConfig"), "parameters.kind: Forbidden: VfioDeviceConfig is not supported by this driver, use GpuConfig or MigDeviceConfig"},
		"a kind for another device": {with(of("mig.nvidia.com", ""), "kind: GpuConfig") + "\n" +
			"  # named\n", ""},
		"a kind for another device, named": {strings.Replace(with(of("mig.nvidia.com", ""), "kind: GpuConfig"), "[{opaque", "[{requests: [r], opaque", 1),
			"config[0].opaque.parameters.kind: Forbidden: GpuConfig is not for a device of type mig, which request \"r\" selects; use MigDeviceConfig"},
		"parameters for another driver's devices": {with(of("nic.example.com", ""), "kind: GpuConfig"),
			`config[0].opaque.driver: Forbidden: gpu.nvidia.com: the parameters are for requests that select devices of another driver: "r" (DeviceClass nic.example.com, driver nic.example.com)`},
		"parameters for a claim of both":            {with(nic, "kind: GpuConfig"), ""},
		"parameters aimed at the other one":         {strings.Replace(with(nic, "kind: GpuConfig"), "[{opaque", "[{requests: [nic], opaque", 1), `"nic" (DeviceClass nic.example.com`},
		"sharing of a group":                        {with(of("nvlink.gpu.nvidia.com", ""), "kind: GpuConfig, sharing: {strategy: TimeSlicing}"), "there is nothing to share"},
		"topology of a group":                       {with(of("nvlink.gpu.nvidia.com", ""), "kind: GpuConfig, topology: {ncclTopology: true}"), ""},
		"two devices by MPS":                        {with(of("gpu.nvidia.com", ", count: 2"), "kind: GpuConfig, sharing: {strategy: MPS}"), "a process reaches the MPS daemon of one device only"},
		"two requests by MPS":                       {with(two, "kind: GpuConfig, sharing: {strategy: MPS}"), ""},
		"two devices by turns":                      {with(two, "kind: GpuConfig, sharing: {strategy: TimeSlicing}"), ""},
		"a limit for a position there is not":       {with(of("gpu.nvidia.com", ""), `kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {"1": 1Gi}}}`), "the claim has no such device"},
		"a limit for a position of another request": {strings.Replace(with(two, `kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {"1": 1Gi}}}`), "[{opaque", "[{requests: [b], opaque", 1), "the claim has no such device"},
		"a limit for a UUID":                        {with(of("gpu.nvidia.com", ""), `kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {"GPU-1": 1Gi}}}`), ""},
		"nothing wrong":                             {with(of("gpu.nvidia.com", ""), "kind: GpuConfig, sharing: {strategy: MPS}"), ""},
		"no parameters":                             {of("gpu.nvidia.com", ""), ""},
		"parameters of an unknown class":            {with(of("new.example.com", ""), "kind: GpuConfig"), ""},
		"parameters for a class of any driver":      {with(of("any.example.com", ""), "kind: GpuConfig"), ""},
		"a class with parameters of no kind":        {class(ours+attr+`type == "gpu"`) + " config: [{opaque: {driver: gpu.nvidia.com, parameters: {kind: X}}}]", "spec.config[0].opaque.parameters.apiVersion: Forbidden: missing"},
		"a class of another with ours":              {class(`device.driver == "x.example.com"`) + " config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig}}}]", "which does not read these parameters"},
		"a class without a driver":                  {class(attr + `type == "gpu"`), "spec.selectors[0].cel.expression: Forbidden: it fails on a device of another driver (no such key: type"},
		"a class by what few devices have":          {class(whole + attr + `nvlinkLinks > 4`), "no such key: nvlinkLinks"},
		"a class that asks first":                   {class(whole + `has(` + attr + `nvlinkLinks) && ` + attr + `nvlinkLinks > 4`), ""},
		"a class by model, then what few have": {class(whole + attr + `productName == "NVIDIA L40S" && ` + attr + `nvlinkLinks > 4`),
			"of type gpu with the productName NVIDIA L40S (no such key: nvlinkLinks)"},
		"a class by model, then what all have here": {class(whole + attr + `productName == "NVIDIA L40S" && ` + attr + `brand != ""`),
			"of type gpu with the productName NVIDIA L40S (no such key: brand)"},
		"a class by memory":                    {class(whole + `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0`), ""},
		"a class in two steps":                 {class(`device.driver == "gpu.nvidia.com"`, attr+`type == "mig"`, attr+`profile == "1g.10gb"`), ""},
		"a class by profile of any type":       {class(ours + attr + `profile == "1g.10gb"`), "type gpu (no such key: profile"},
		"a class by model of any type":         {class(ours + attr + `productName.lowerAscii().matches("h100")`), ""},
		"a class by version":                   {class(whole + attr + `cudaComputeCapability.isGreaterThan(semver("8.0.0"))`), ""},
		"a class by a part of the name":        {class(whole + attr + `productName.substring(7) == "H100 80GB HBM3" && ` + attr + `productName.split(" ")[1] == "H100"`), ""},
		"a class of a driver with a like name": {class(`device.driver == "vgpu.nvidia.com" && device.attributes["vgpu.nvidia.com"].x == 1`), ""},
		"a class of all but ours":              {class(`device.driver != "gpu.nvidia.com" && device.attributes["nic.example.com"].rdma`), ""},
		"a limit beside a group": {with(claim("  requests: [{name: ring, exactly: {deviceClassName: nvlink.gpu.nvidia.com}}, {name: one, exactly: {deviceClassName: gpu.nvidia.com}}]"),
			`kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {"4": 10Gi}}}`), "there is nothing to share"},
		"sharing where a group is one alternative": {with(claim("  requests: [{name: r, firstAvailable: [{name: a, deviceClassName: nvlink.gpu.nvidia.com}, {name: b, deviceClassName: gpu.nvidia.com}]}]"),
			"kind: GpuConfig, sharing: {strategy: TimeSlicing}"), ""},
		"a limit of 900 TiB": {with(of("gpu.nvidia.com", ""), `kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 900Ti}}`),
			"parameters.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: Forbidden: 900Ti is more than any device has"},
		"a share of next to nothing": {of("gpu.nvidia.com", ", capacity: {requests: {memory: 1Mi}}"), "spec.devices.requests[r].capacity.requests[memory]: Forbidden: 1Mi is less than the least share, 16Mi"},
		"a share of nothing":         {of("mig.nvidia.com", `, capacity: {requests: {memory: "0"}}`), "0 is less than the least share, 16Mi"},
		"a share of less":            {claim("  requests: [{name: r, firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: -10Gi}}}]}]"), "requests[r/a].capacity.requests[memory]: Forbidden: -10Gi is less"},
		"negative compute":           {of("gpu.nvidia.com", ", capacity: {requests: {memory: 10Gi, compute: -5}}"), "-5 is less than the least share, 0"},
		"the least share":            {of("gpu.nvidia.com", ", capacity: {requests: {memory: 16Mi}}"), ""},
		"a capacity with the driver's domain": {of("gpu.nvidia.com", ", capacity: {requests: {gpu.nvidia.com/memory: 10Gi}}"),
			"capacity.requests[gpu.nvidia.com/memory]: Forbidden: no device has a capacity of this name, because the scheduler compares it as it is published; write memory: 10Gi"},
		"another driver's capacity": {of("nic.example.com", ", capacity: {requests: {memory: 1}}"), ""},
		"a channel of a compute domain": {claim("  requests: [{name: channel, exactly: {deviceClassName: compute-domain-default-channel.nvidia.com}}]\n" +
			"  config: [{requests: [channel], opaque: {driver: compute-domain.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomainChannelConfig, domainID: a, allocationMode: Single}}}]"), ""},
		"a GPU beside a compute domain's daemon": {claim("  requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}, {name: daemon, exactly: {deviceClassName: compute-domain-daemon.nvidia.com}}]\n" +
			"  config: [{requests: [daemon], opaque: {driver: compute-domain.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomainDaemonConfig, domainID: a}}}]"), ""},
		"a compute domain's class": {class(`device.driver == "compute-domain.nvidia.com" && device.attributes["compute-domain.nvidia.com"].type == "channel"`), ""},
		"another driver's class":   {class(`device.driver == "x.example.com" && device.attributes["x.example.com"].y == 1`), ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := Review(t.Context(), v, asked(t, c.object), Options{Binding: true})
			switch {
			case c.want == "" && !r.Allowed:
				t.Errorf("denied: %s", r.Result.Message)
			case c.want != "" && !r.Allowed && r.Result.Reason == metav1.StatusReasonInvalid && r.Result.Details.Causes[0].Field != v.driver:
				t.Errorf("kubectl does not print whose webhook denies: %v", r.Result.Details.Causes)
			case c.want != "" && (r.Allowed || !strings.Contains(r.Result.Message, c.want)):
				t.Errorf("%+v, want %q", r.Result, c.want)
			}
			if advice := Review(t.Context(), v, asked(t, c.object), Options{}); !advice.Allowed {
				t.Error("advice denies")
			} else if c.want != "" && len(advice.Warnings) == 0 {
				t.Error("advice says nothing of it")
			}
		})
	}
}

func TestReview_ProfileThatNoObjectAskedForYet_SaysThatItComes(t *testing.T) {
	settings, _, err := sharing.Parse([]byte("publish: [{profiles: Auto}]"))
	if err != nil {
		t.Fatal(err)
	}
	v := newViewOf(t, patient, settings, "hgx-h100")
	v.OnDemand = true
	const comes = "request r: nodes publish fewer of these partitions now, and more while the claim waits"
	const mig = `device.driver == "gpu.nvidia.com" && ` + attr + `type == "mig" && `
	last := "" // No partition of it is published.
	for d, kind := range v.pools[0].Devices() {
		if kind.Type == gpu.KindGPU {
			last = pool.Text(d, "resource.kubernetes.io/pciBusID")
		}
	}
	for object, want := range map[string]string{
		of("mig.nvidia.com", selecting(attr+`type == "mig" && `+attr+`profile == "1g.10gb"`)):                 "",
		of("mig.nvidia.com", ", count: 3"+selecting(attr+`type == "mig" && `+attr+`profile == "1g.10gb"`)):    comes,
		of("mig.nvidia.com", ", count: 2"+selecting(attr+`type == "mig" && `+attr+`profile == "9g.10gb"`)):    "has the profile",
		of("mig.nvidia.com", ", count: 2"+selecting(attr+`type == "mig" && `+attr+`architecture == "Ada"`)):   "architecture",
		of("mig.nvidia.com", ", count: 2"+selecting(`device.attributes["gpu.nvidia.com"].type == "monitor"`)): "matches its class and selectors",
		of("gpu.nvidia.com", ", count: 9"):                                                                           "more than 8 that match",
		of("mig.nvidia.com", ", count: 9"+selecting(attr+`profile.startsWith("1g")`)):                                comes,
		of("mig.nvidia.com", selecting(`device.attributes["resource.kubernetes.io"].pciBusID == "`+last+`"`)):        comes,
		of("mig.nvidia.com", selecting(`cel.bind(a, device.attributes["resource.kubernetes.io"], a.numaNode) == 1`)): comes,
		class(mig + `device.attributes["resource.kubernetes.io"].pciBusID == "` + last + `"`):                        "",
		class(mig + attr + `profile == "9g.10gb" && has(device.attributes["resource.kubernetes.io"].numaNode)`):      "has the profile",
		class(mig + attr + `productName == "Tesla T4"`):                                                              "productName",
	} {
		answer := Review(t.Context(), v, asked(t, object), Options{Binding: true})
		got := strings.Join(answer.Warnings, "; ")
		if !answer.Allowed || !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s\nallowed %v, warnings %q, want %q", object, answer.Allowed, got, want)
		}
		deny := Review(t.Context(), v, asked(t, object), Options{DenyUnsatisfiable: true})
		if !strings.Contains(object, "DeviceClass") && deny.Allowed != (want == "" || want == comes) {
			t.Errorf("%s\nwith DenyUnsatisfiable: %+v", object, deny)
		}
	}
}

func TestReview_DevicesThatNoObjectAskedForYet_SaysThatTheyCome(t *testing.T) {
	settings, _, err := sharing.Parse([]byte("publish: [{profiles: Auto, groups: Auto, monitors: Auto}]"))
	if err != nil {
		t.Fatal(err)
	}
	v := newViewOf(t, patient, settings, "hgx-h100")
	v.OnDemand = true
	const (
		comes = "request r: nodes publish no such groups now, and some while the claim waits"
		watch = "request r: nodes publish no monitor devices now, and some while the claim waits"
		// tolerating lets a claim have a monitor device.
		tolerating = `, adminAccess: true, tolerations: [{key: gpu.nvidia.com/monitor, operator: Exists}]`
	)
	for object, want := range map[string]string{
		of("nvlink.gpu.nvidia.com", ""):                                                                               comes,
		of("nvlink.gpu.nvidia.com", selecting(attr+`gpuCount == 8`)):                                                  comes,
		of("nvlink.gpu.nvidia.com", selecting(attr+`gpuCount == 16`)):                                                 "no node of the cluster|no device of the cluster",
		of("gpu.nvidia.com", ", count: 8"):                                                                            "",
		of("monitor.gpu.nvidia.com", ", allocationMode: All"+tolerating):                                              watch,
		of("monitor.gpu.nvidia.com", ", count: 9"+tolerating):                                                         "no node of the cluster as it is now has more than 8 that match",
		of("nvlink.gpu.nvidia.com", selecting(attr+`migCapable == true`)):                                             "migCapable|matches its class and selectors",
		class(`device.driver == "gpu.nvidia.com" && ` + attr + `type == "nvlink-group" && ` + attr + `gpuCount == 4`): "",
	} {
		answer := Review(t.Context(), v, asked(t, object), Options{Binding: true})
		got := strings.Join(answer.Warnings, "; ")
		said := slices.ContainsFunc(strings.Split(want, "|"), func(part string) bool { return strings.Contains(got, part) })
		if !answer.Allowed || !said || want == "" && got != "" {
			t.Errorf("%s\nallowed %v, warnings %q, want %q", object, answer.Allowed, got, want)
		}
		if deny := Review(t.Context(), v, asked(t, object), Options{DenyUnsatisfiable: true}); !strings.Contains(object, "DeviceClass") && deny.Allowed != (want == "" || want == comes || want == watch) {
			t.Errorf("%s\nwith DenyUnsatisfiable: %+v", object, deny)
		}
	}
}

// TestReview_TimeLimit_AllowsWithWarning has objects that are denied in time. A review that ended early must not change
// later ones.
func TestReview_TimeLimit_AllowsWithWarning(t *testing.T) {
	v := newView(t, patient, "hgx-h100", "l40s-4")
	v.OnDemand = true
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	deny := Options{Binding: true, DenyUnsatisfiable: true}
	for _, object := range []string{
		class(attr + `profile == "1g.10gb"`),
		of("gpu.nvidia.com", ", count: 9"),
		claim("  requests: [{name: p, exactly: {deviceClassName: mig.nvidia.com}}, {name: r, exactly: {deviceClassName: gpu.nvidia.com, count: 9}}]"),
	} {
		r := asked(t, object)
		if got := Review(late, v, r, deny); !got.Allowed || !slices.Contains(got.Warnings, CutShort) {
			t.Errorf("%s\nallowed %v, warnings %q", object, got.Allowed, got.Warnings)
		}
		if got := Review(t.Context(), v, r, deny); got.Allowed || slices.Contains(got.Warnings, CutShort) {
			t.Errorf("%s\nwith time: allowed %v, warnings %q", object, got.Allowed, got.Warnings)
		}
	}
}

// TestReview_UnsatisfiableObject_Warns has a ! before the warnings of objects that DenyUnsatisfiable denies.
func TestReview_UnsatisfiableObject_Warns(t *testing.T) {
	v := newView(t, patient, "hgx-h100", "l40s-4")
	for name, c := range map[string]struct{ object, want string }{
		"an attribute that is not there":      {of("gpu.nvidia.com", selecting(attr+`product == "x"`)), `!request r: no device has the attribute product; is productName meant?`},
		"an attribute of the standard":        {of("gpu.nvidia.com", selecting(attr+`numaNode == 0`)), "!request r: no device has the attribute numaNode; is resource.kubernetes.io/numaNode meant?"},
		"an attribute of no board here":       {of("gpu.nvidia.com", selecting(attr+`fabricCluster == "x"`)), "!no device has the attribute fabricCluster; there are "},
		"a part of more than a partition":     {of("mig.nvidia.com", ", capacity: {requests: {memory: 80Gi}}"), "!the largest partition has 80896Mi|request r: it asks 80Gi of memory; the largest partition has"},
		"a capacity that is not there":        {of("gpu.nvidia.com", selecting(`device.capacity["gpu.nvidia.com"].mem.compareTo(quantity("1Gi")) > 0`)), "!no device has the capacity mem"},
		"an attribute that is a capacity":     {of("gpu.nvidia.com", selecting(attr+`memory > 4`)), "!memory"},
		"a capacity request":                  {of("gpu.nvidia.com", ", capacity: {requests: {memori: 10Gi}}"), "!no device has the capacity memori; is memory meant?"},
		"a constraint":                        {of("gpu.nvidia.com", ", count: 2") + "\n  constraints: [{matchAttribute: gpu.nvidia.com/nvlinkgroup}]", "!constraints: no device has the attribute gpu.nvidia.com/nvlinkgroup; is nvlinkGroup meant?"},
		"a constraint of the standard":        {of("gpu.nvidia.com", ", count: 3") + "\n  constraints: [{matchAttribute: resource.kubernetes.io/pcieRoot}]", "!request r: no node of the cluster as it is now could satisfy it, even if it were empty"},
		"a model that is not there":           {of("gpu.nvidia.com", selecting(attr+`productName == "NVIDIA H100 80GB HBM2"`)), `!no device of the cluster has the productName "NVIDIA H100 80GB HBM2"; is "NVIDIA H100 80GB HBM3" meant?`},
		"a profile that is not there":         {of("mig.nvidia.com", selecting(attr+`profile in ["1g.5gb"]`)), `!has the profile "1g.5gb"; is "1g.10gb" meant? Nodes publish only the profiles of their settings (chart value publish)`},
		"a profile's class that is not there": {of("mig-1g.5gb.nvidia.com", ""), "a pod waits until there is one. Nodes publish only the profiles of their settings (chart value publish)"},
		"a profile chosen otherwise":          {of("mig.nvidia.com", selecting(attr+`profile.startsWith("9g")`)), "!matches its class and selectors. Nodes publish only"},
		"a class that is not there":           {of("gpu.nvdia.com", ""), "there is no DeviceClass gpu.nvdia.com; is gpu.nvidia.com meant?"},
		"more GPUs than a node has":           {of("gpu.nvidia.com", ", count: 9"), "!request r: it asks for 9 devices; no node of the cluster as it is now has more than 8 that match"},
		"as many as a node has":               {of("gpu.nvidia.com", ", count: 8"), ""},
		"more memory than a GPU has":          {of("gpu.nvidia.com", selecting(`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("100Gi")) >= 0`)), "!request r: no device of the cluster as it is now matches its class and selectors"},
		"a selector that fails":               {of("gpu.nvidia.com", selecting(attr+`profile == "1g.10gb"`)), "!the scheduler would give up: selector #0 on device |no such key: profile. The device lacks the attribute or its domain"},
		"a fraction":                          {of("gpu.nvidia.com", ", capacity: {requests: {memory: 10Gi}}"), ""},
		"more than all of it":                 {of("gpu.nvidia.com", ", capacity: {requests: {memory: 100Gi}}"), "!request r: it asks 100Gi of memory; the largest GPU has 81559Mi"},
		"a limit above the largest GPU": {with(of("gpu.nvidia.com", ""), `kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 81Gi}}`),
			"spec.devices.config[0].opaque.parameters.sharing.mpsConfig: a memory limit of 82944 MiB is more than any GPU of the cluster has (81559 MiB)"},
		"a limit below the largest GPU":       {with(of("gpu.nvidia.com", ""), `kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 79Gi}}`), ""},
		"a group of eight":                    {of("nvlink.gpu.nvidia.com", selecting(attr+`gpuCount == 8`)), ""},
		"a group of five":                     {of("nvlink.gpu.nvidia.com", selecting(attr+`gpuCount == 5`)), "!request r: no device of the cluster as it is now matches its class"},
		"alternatives, one of which there is": {claim("  requests: [{name: r, firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com" + selecting(attr+`productName == "NVIDIA B300"`) + "}, {name: b, deviceClassName: gpu.nvidia.com}]}]"), ""},
		"one GPU and a network card":          {claim("  requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com}}, {name: nic, exactly: {deviceClassName: nic.example.com}}]\n  constraints: [{matchAttribute: resource.kubernetes.io/pcieRoot}]"), ""},
		"a certain board":                     {of("gpu.nvidia.com", selecting(attr+`uuid == "GPU-of-the-second-node"`)), ""},
		"two shares":                          {claim("  requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 10Gi}}}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 10Gi}}}}]"), "requests a and b: by MPS a container has the share of one request; name it in the container (resources.claims[].request)"},
		"two requests by MPS": {with(claim("  requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com}}]"), "kind: GpuConfig, sharing: {strategy: MPS}"),
			"requests a and b: by MPS"},
		"two shares by turns": {with(claim("  requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 10Gi}}}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 10Gi}}}}]"),
			"kind: GpuConfig, sharing: {strategy: TimeSlicing}"), "request a: it shares a GPU by TimeSlicing, and by default other claims use mps; on one GPU, the second claim is not prepared"},
		"a share by the nodes' strategy": {with(of("gpu.nvidia.com", ", capacity: {requests: {memory: 10Gi}}"), "kind: GpuConfig, sharing: {strategy: MPS}"), ""},
		"a whole GPU by turns":           {with(of("gpu.nvidia.com", ""), "kind: GpuConfig, sharing: {strategy: TimeSlicing}"), ""},
		"two shares that cannot be":      {claim("  requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 10Gi}}}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 100Gi}}}}]"), "!request b: it asks 100Gi of memory; the largest GPU has 81559Mi"},
		"two shares in a request": {of("gpu.nvidia.com", ", count: 2, capacity: {requests: {memory: 10Gi}}"),
			"request r: its shares are of different GPUs, and by MPS a container reaches one; ask for one share in a request, or name the strategy TimeSlicing in a GpuConfig"},
		"all shares":                          {of("gpu.nvidia.com", ", allocationMode: All, capacity: {requests: {memory: 10Gi}}"), "request r: its shares are of different GPUs"},
		"two shares in a request, of one GPU": {of("gpu.nvidia.com", ", count: 2, capacity: {requests: {memory: 10Gi}}") + "\n  constraints: [{requests: [r], matchAttribute: gpu.nvidia.com/uuid}]", "!request r: no node"},
		"what only other clusters have":       {of("gpu.nvidia.com", selecting(`has(`+attr+`cliqueID) || `+attr+`type == "gpu"`)), ""},
		"another vendor's class":              {of("gpu.intel.com", ""), ""},
		"another driver's claim":              {of("nic.example.com", ", count: 100"), ""},
		"monitoring":                          {of("monitor.gpu.nvidia.com", ", adminAccess: true, tolerations: [{key: gpu.nvidia.com/monitor, operator: Exists}]"), ""},
		"monitoring by a whole GPU":           {of("gpu.nvidia.com", ", adminAccess: true"), "request r: adminAccess waits while other claims have the GPU, because the scheduler counts it like them; ask for the class monitor.gpu.nvidia.com"},
		"monitoring by a partition":           {of("mig.nvidia.com", ", adminAccess: true"), "request r: adminAccess waits"},
		"monitoring without the toleration":   {of("monitor.gpu.nvidia.com", ", adminAccess: true"), "!request r: no node"},
		"a class of the chart's extended resource": {class(whole+`true`) + " extendedResourceName: nvidia.com/gpu\n",
			"DeviceClass gpu.nvidia.com has the extendedResourceName nvidia.com/gpu too; the scheduler uses the newest class only"},
		"a class of its own extended resource": {class(whole+`true`) + " extendedResourceName: example.com/gpu\n", ""},
		"a class of a model of any type":       {class(ours + attr + `productName == "NVIDIA H100 80GB HBM3"`), "matches devices of the types gpu, mig"},
		"a class that matches nothing":         {class(whole + `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("400Gi")) >= 0`), "matches no device of the cluster"},
		"a class of a model that is not here":  {class(whole + attr + `productName == "NVIDIA B300"`), "has the productName"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, binding := range []bool{true, false} {
				r := Review(t.Context(), v, asked(t, c.object), Options{Binding: binding})
				if !r.Allowed {
					t.Fatalf("denied: %s", r.Result.Message)
				}
				wants, denied := strings.CutPrefix(c.want, "!")
				text, found := strings.Join(r.Warnings, "\n"), c.want == ""
				for _, want := range strings.Split(wants, "|") {
					found = found || strings.Contains(text, want)
				}
				if !found || c.want == "" && text != "" {
					t.Errorf("warnings: %q, want %q", text, c.want)
				}
				deny := Review(t.Context(), v, asked(t, c.object), Options{Binding: binding, DenyUnsatisfiable: true})
				if deny.Allowed == denied || denied && !strings.Contains(deny.Result.Message, "webhook.denyUnsatisfiable") {
					t.Errorf("with DenyUnsatisfiable: %+v", deny)
				}
				for _, one := range r.Warnings {
					if len(one) > 256 {
						t.Errorf("a warning of %d bytes is cut by the API server", len(one))
					}
				}
			}
		})
	}
	both := asked(t, claim("  requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, count: 3}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]"))
	if r := Review(t.Context(), newView(t, patient, "l40s-4"), both, Options{Binding: true}); len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "all requests of the claim together") {
		t.Errorf("warnings for requests that exclude each other: %v", r.Warnings)
	}
	parts := asked(t, claim("  requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, count: 5}}, "+
		"{name: b, exactly: {deviceClassName: mig.nvidia.com, count: 22, selectors: [{cel: {expression: "+
		`'device.attributes["gpu.nvidia.com"].profile == "1g.10gb"'`+"}}]}}]"))
	if r := Review(t.Context(), newView(t, searchFor, "hgx-h100"), parts, Options{Binding: true}); len(r.Warnings) != 1 ||
		!strings.Contains(r.Warnings[0], "the largest has room for 21 of the 22 devices of request b beside the others") {
		t.Errorf("warnings for requests of which one partition does not fit: %v", r.Warnings)
	}
	unknown := Options{Binding: true, DenyUnsatisfiable: true}
	if r := Review(t.Context(), newView(t, patient), asked(t, of("gpu.nvidia.com", ", count: 900")), unknown); !r.Allowed || len(r.Warnings) > 0 {
		t.Errorf("review of an unknown cluster: %+v", r)
	}
	if r := Review(t.Context(), newView(t, 0, "l40s-4"), both, Options{DenyUnsatisfiable: true}); !r.Allowed {
		t.Errorf("denied without a result in time: %s", r.Result.Message)
	}
}

// TestReview_HugeObject_BoundedWork reviews objects that no API server accepts, but that any program can post.
func TestReview_HugeObject_BoundedWork(t *testing.T) {
	v := newView(t, patient, "hgx-h100", "l40s-4")
	many := func(n int, text func(int) string) string {
		var all []string
		for i := range n {
			all = append(all, text(i))
		}
		return strings.Join(all, ", ")
	}
	unknown := func(i int) string {
		return fmt.Sprintf(`{cel: {expression: 'device.attributes["gpu.nvidia.com"].a%d == "x"'}}`, i)
	}
	parameters := func(int) string {
		return "{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig}}}"
	}
	for name, object := range map[string]string{
		"many requests":                   claim("  requests: [" + many(3000, func(i int) string { return fmt.Sprintf("{name: r%d, exactly: {deviceClassName: gpu.nvidia.con}}", i) }) + "]"),
		"many selectors":                  of("gpu.nvidia.com", ", selectors: ["+many(3000, unknown)+"]"),
		"one long selector":               of("gpu.nvidia.com", selecting(strings.Repeat(attr+`x1 == "a" || `, 4000)+"true")),
		"a count within the API's limits": of("gpu.nvidia.com", ", count: 9223372036854775807"),
		"many capacities":                 of("gpu.nvidia.com", ", capacity: {requests: {"+many(3000, func(i int) string { return fmt.Sprintf("c%d: 1", i) })+"}}"),
		"an amount of many digits":        of("gpu.nvidia.com", `, capacity: {requests: {memory: "1e100002"}}`),
		"an amount of many small digits":  of("gpu.nvidia.com", `, capacity: {requests: {compute: "1e-100000"}}`),
		"an alternative's amount": claim(`  requests: [{name: r, firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com, capacity: {requests: ` +
			`{compute: "1234567890123456e-100000"}}}]}]`),
		"regular expressions that grow":  of("gpu.nvidia.com", selecting(whole+strings.Repeat(`"x".matches("(a{9}){99}") || `, 20)+"true")),
		"a class of regular expressions": class(whole + strings.Repeat(`"x".matches("(a{9}){99}") || `, 20) + "true"),
		"many constraints": claim("  requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com}}]\n  constraints: [" +
			many(3000, func(i int) string { return fmt.Sprintf("{matchAttribute: gpu.nvidia.com/c%d}", i) }) + "]"),
		"names within the API's limits": of("gpu.nvidia.com", selecting(strings.Repeat(attr+`x1 == "a" || `+attr+`x2 == "a" || `, 60)+
			strings.Join(func() (all []string) {
				for i := range 60 {
					all = append(all, fmt.Sprintf("%sname%d == 1", attr, i))
				}
				return all
			}(), " || "))),
		"many parameters":              claim("  requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com}}]\n  config: [" + many(3000, parameters) + "]"),
		"a class with many parameters": class(whole+"true") + " config: [" + many(3000, parameters) + "]",
		"a class with a long selector": class(strings.Repeat(attr+`x1 == "a" || `, 4000) + "true"),
	} {
		began := time.Now()
		a := Review(t.Context(), v, asked(t, object), Options{})
		if len(a.Warnings) == 0 || len(a.Warnings) > maxWarnings {
			t.Errorf("%s: %d warnings", name, len(a.Warnings))
		}
		// An object that is not checked is not allowed either: its parameters could be wrong.
		if a := Review(t.Context(), v, asked(t, object), Options{Binding: true}); a.Allowed != strings.Contains(name, "within the API's limits") {
			t.Errorf("%s: allowed %v", name, a.Allowed)
		}
		t.Logf("%s: %d kB, %v, %d warnings", name, len(object)>>10, time.Since(began), len(a.Warnings))
	}
}

func TestReview_EveryVersionAndKind_IsReviewed(t *testing.T) {
	v := newView(t, patient, "l40s-4")
	for name, object := range map[string]string{
		"v1beta1": "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\nspec:\n devices:\n  requests: [{name: r, deviceClassName: gpu.nvidia.com}]\n" +
			"  config: [{opaque: {driver: gpu.nvidia.com, parameters: {kind: X}}}]",
		"v1beta2": strings.Replace(with(of("gpu.nvidia.com", ""), "kind: X"), "io/v1\n", "io/v1beta2\n", 1),
		"a template": "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nspec:\n spec:\n  devices:\n   requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com}}]\n" +
			"   config: [{opaque: {driver: gpu.nvidia.com, parameters: {kind: X}}}]",
		"a v1beta1 template": "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaimTemplate\nspec:\n spec:\n  devices:\n   requests: [{name: r, deviceClassName: gpu.nvidia.com}]\n" +
			"   config: [{opaque: {driver: gpu.nvidia.com, parameters: {kind: X}}}]",
		"a class of long selectors": class(strings.Repeat(attr+"type == 'gpu' || ", 3000)+"true") +
			" config: [{opaque: {driver: gpu.nvidia.com, parameters: {kind: X}}}]",
		"a v1beta1 class": strings.Replace(class(attr+"type == 'gpu'"), "io/v1\n", "io/v1beta1\n", 1),
		"a v1beta2 class": strings.Replace(class(attr+"type == 'gpu'"), "io/v1\n", "io/v1beta2\n", 1),
	} {
		r := Review(t.Context(), v, asked(t, object), Options{Binding: true})
		if r.Allowed {
			t.Errorf("%s: allowed", name)
		} else if strings.Contains(name, "template") && !strings.HasPrefix(r.Result.Message, "spec.spec.devices.config[0]") {
			t.Errorf("%s: %s", name, r.Result.Message)
		}
	}
}

func TestReview_UpdateOrDelete_IsNotHeldUp(t *testing.T) {
	v := newView(t, patient, "l40s-4")
	bad := asked(t, with(of("gpu.nvidia.com", ""), "kind: X"))
	bad.Operation = admissionv1.Update
	if r := Review(t.Context(), v, bad, Options{Binding: true}); !r.Allowed {
		t.Error("the finalizers of a claim could not be changed any more")
	}
	old := asked(t, class(attr+`type == "gpu"`))
	old.Operation, old.OldObject = admissionv1.Update, old.Object
	if r := Review(t.Context(), v, old, Options{Binding: true}); !r.Allowed {
		t.Error("the labels of a class could not be changed any more")
	}
	old.OldObject = asked(t, class("true")).Object
	if r := Review(t.Context(), v, old, Options{Binding: true}); r.Allowed {
		t.Error("a class can be made wrong by an update")
	}
	deleted := asked(t, with(of("gpu.nvidia.com", ""), "kind: X"))
	deleted.Operation = admissionv1.Delete
	if r := Review(t.Context(), v, deleted, Options{Binding: true}); !r.Allowed {
		t.Error("a claim could not be deleted")
	}
}

func TestReview_UnreadableObject_IsDeniedOnlyIfBinding(t *testing.T) {
	v := newView(t, patient, "l40s-4")
	for name, change := range map[string]func(*admissionv1.AdmissionRequest){
		"no object":         func(r *admissionv1.AdmissionRequest) { r.Object.Raw = nil },
		"no JSON":           func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte("{") },
		"another type":      func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte(`{"spec": 4}`) },
		"a version to come": func(r *admissionv1.AdmissionRequest) { r.Resource.Version = "v2" },
	} {
		r := asked(t, of("gpu.nvidia.com", ""))
		change(r)
		if got := Review(t.Context(), v, r, Options{Binding: true}); got.Allowed || got.Result == nil || got.UID != "u" {
			t.Errorf("%s: %+v", name, got)
		}
		if got := Review(t.Context(), v, r, Options{}); !got.Allowed || got.UID != "u" {
			t.Errorf("%s: advice denies: %+v", name, got)
		}
	}
	if got := Review(t.Context(), v, nil, Options{Binding: true}); got.Allowed {
		t.Error("no request is allowed")
	}
}

func FuzzReview(f *testing.F) {
	v := newView(f, patient, "l40s-4")
	for _, object := range []string{of("gpu.nvidia.com", selecting(attr+`type == "gpu"`)), with(of("mig.nvidia.com", ", count: 3"), "kind: GpuConfig"), class(whole + "true")} {
		r := asked(f, object)
		data, _ := json.Marshal(r)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r admissionv1.AdmissionRequest
		if json.Unmarshal(data, &r) != nil {
			return
		}
		if got := Review(context.Background(), v, &r, Options{}); !got.Allowed {
			t.Error("advice denies")
		}
		if got := Review(context.Background(), v, &r, Options{Binding: true}); !got.Allowed && got.Result.Message == "" {
			t.Error("denied without a message")
		}
	})
}

// BenchmarkReview reviews in a cluster whose nodes are all alike, and in one with nodes of every make.
func BenchmarkReview(b *testing.B) {
	for cluster, makes := range map[string][]string{"alike": {"hgx-h100"}, "every make": profiles.Names()} {
		v := newView(b, searchFor, makes...)
		for name, object := range map[string]string{
			"parameters": with(of("gpu.nvidia.com", ""), "kind: GpuConfig, sharing: {strategy: MPS}"),
			"profile":    of("mig.nvidia.com", selecting(attr+`profile == "3g.40gb"`)),
			"nothing":    of("gpu.nvidia.com", ", count: 9"),
			"class":      class(whole + attr + `productName == "NVIDIA H100 80GB HBM3"`),
		} {
			r := asked(b, object)
			b.Run(cluster+"/"+name, func(b *testing.B) {
				for b.Loop() {
					Review(b.Context(), v, r, Options{Binding: true})
				}
			})
		}
	}
}

// TestTry_EveryDevice_HasTheResultOfItsOwnEvaluation compares the results that many devices share with an evaluation for
// each device.
func TestTry_EveryDevice_HasTheResultOfItsOwnEvaluation(t *testing.T) {
	v := newView(t, patient, profiles.Names()...)
	compiled := cel.NewCache(20, cel.Features{EnableConsumableCapacity: true})
	for _, e := range []string{
		attr + `type == "gpu"`, attr + `index == 3`, attr + `migCapable`, `has(` + attr + `profile) && ` + attr + `profile == "1g.10gb"`,
		attr + `profile == "1g.10gb"`, `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0`,
		attr + `driverVersion.isGreaterThan(semver("1.0.0"))`, `device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:17"`,
		`device.attributes[?"gpu.nvidia.com"].?gpuCount.orValue(0) == 4`, `"memory" in device.capacity["gpu.nvidia.com"]`,
		`device.allowMultipleAllocations`, `device.driver == "gpu.nvidia.com"`,
	} {
		for _, p := range v.pools {
			for c := range candidates(p) {
				want, _, wantErr := compiled.GetOrCompile(e).DeviceMatches(t.Context(), c.Device)
				got, err := v.Matches(t.Context(), e, c)
				if got != want || (err == nil) != (wantErr == nil) {
					t.Fatalf("%s of %s of %s: %v, %v; alone %v, %v", e, c.Shape.Spec.Devices[c.Index].Name, p.Node, got, err, want, wantErr)
				}
			}
		}
	}
}

// BenchmarkReview_NeverSeenAndUnsatisfiable reviews claims by different selectors that no device satisfies, in a cluster
// with many models.
func BenchmarkReview_NeverSeenAndUnsatisfiable(b *testing.B) {
	v := newModels(b, 50)
	n := 0
	for b.Loop() {
		n++
		expression := fmt.Sprintf(`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("%dGi")) >= 0`, 1<<10+n)
		got := Review(b.Context(), v, asked(b, of("gpu.nvidia.com", selecting(expression))), Options{})
		if len(got.Warnings) != 1 || got.Warnings[0] == CutShort {
			b.Fatal(got.Warnings)
		}
	}
}

// newModels is the view of a cluster with a board that can be cut, and boards of several models that cannot.
func newModels(t testing.TB, models int) *ClusterView {
	t.Helper()
	v := newView(t, time.Minute, "hgx-h100", "dgx-1-v100")
	shapes, pools := &pool.Shapes{}, v.pools
	for i := range models {
		published, err := slicetest.Node("dgx-1-v100", fmt.Sprintf("m%d", i), 0)
		if err != nil {
			t.Fatal(err)
		}
		var all []*pool.Slice
		for _, s := range published {
			for _, d := range s.Spec.Devices {
				if _, ok := d.Attributes["productName"]; ok {
					d.Attributes["productName"] = resourceapi.DeviceAttribute{StringValue: new(fmt.Sprintf("Model %d", i))}
				}
			}
			one := shapes.Trim(s)
			all = append(all, &one)
		}
		pools = append(pools, pool.Of(all))
	}
	v = NewClusterView("gpu.nvidia.com", ask.Asker{Evaluator: ask.NewEvaluator(), Classes: v.Classes}, pools)
	v.SearchFor, v.reviewFor = patient, patient
	return v
}

// TestReview_CutShort_NextOneSearchesAgain has a review without time for a search.
func TestReview_CutShort_NextOneSearchesAgain(t *testing.T) {
	v := newView(t, 0, "hgx-h100")
	r := asked(t, of("gpu.nvidia.com", ", count: 9"))
	if got := Review(t.Context(), v, r, Options{}); !got.Allowed || !slices.Equal(got.Warnings, []string{CutShort}) {
		t.Fatalf("the first review is not cut short: %q", got.Warnings)
	}
	v.SearchFor = patient
	if got := Review(t.Context(), v, r, Options{}); len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "it asks for 9 devices; no node") {
		t.Errorf("the next review has %q", got.Warnings)
	}
}

// TestReview_ManyCombinations_IsCutShort has a claim for two GPUs with one UUID, beside six others. The allocator tries all
// GPUs in every order, which takes long.
func TestReview_ManyCombinations_IsCutShort(t *testing.T) {
	v := newView(t, searchFor, "hgx-h100")
	r := asked(t, claim("  requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, count: 6}}, "+
		"{name: b, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]\n"+
		"  constraints: [{requests: [b], matchAttribute: gpu.nvidia.com/uuid}]"))
	if got := Review(t.Context(), v, r, Options{Binding: true, DenyUnsatisfiable: true}); !got.Allowed || !slices.Equal(got.Warnings, []string{CutShort}) {
		t.Errorf("allowed %v, warnings %q", got.Allowed, got.Warnings)
	}
}

// TestLimited_NoProcessor_EndsByTheWall has a review that waits all the time, as on a busy machine.
func TestLimited_NoProcessor_EndsByTheWall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewClusterView("gpu.nvidia.com", ask.Asker{}, nil)
		ctx, cancel := v.limited(t.Context(), 0)
		defer cancel()
		time.Sleep(reviewFor * 9 / 10)
		if ctx.Err() != nil {
			t.Errorf("it ended early by %v", context.Cause(ctx))
		}
		time.Sleep(reviewFor / 10)
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			t.Errorf("it ended by %v", context.Cause(ctx))
		}
	})
}
