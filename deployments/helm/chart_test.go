// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/internal/seedtest"
)

var update = flag.Bool("update", false, "write the goldens")

// chart is the directory of the chart. test/mutation names a changed copy.
var chart = "gpu-dra-driver"

func init() {
	if dir := os.Getenv("GPU_DRA_DRIVER_CHART"); dir != "" {
		chart = dir
	}
}

var built sync.Map

// toolPath returns the path of a tool, which hack/tool.sh builds if it is missing.
func toolPath(name string) (string, error) {
	find := func() (string, error) {
		out, err := exec.Command(filepath.Join("..", "..", "hack", "tool.sh"), "--path", name).Output()
		return strings.TrimSpace(string(out)), err
	}
	once, _ := built.LoadOrStore(name, sync.OnceValues(find))
	return once.(func() (string, error))()
}

// tool runs a program of hack/tool.sh and returns its stdout and stderr.
func tool(t *testing.T, stdin []byte, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	path, err := toolPath(args[0])
	if err != nil {
		t.Fatalf("build %s: %v", args[0], err)
	}
	cmd := exec.CommandContext(t.Context(), path, args[1:]...)
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &problems
	// The output must not depend on a cluster or on user settings.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+os.DevNull, "HELM_NAMESPACE=")
	err = cmd.Run()
	return out.String(), problems.String(), err
}

// rendered has what render returned for the chart of the tree, by arguments.
var rendered sync.Map

// render returns the manifests of the chart in a directory.
func render(t *testing.T, dir string, args ...string) string {
	t.Helper()
	key := fmt.Sprintf("%q", args)
	if out, ok := rendered.Load(key); ok && dir == chart {
		return out.(string)
	}
	out, err := template(t, "gpu-dra-driver", dir, append([]string{"--namespace", "gpu-dra-driver", "--set", registry}, args...)...)
	if err != nil {
		t.Fatalf("helm template %q: %v", args, err)
	}
	if dir == chart { // No test changes it.
		rendered.Store(key, out)
	}
	return out
}

// registry is a value that each installation needs.
const registry = "image.registry=registry.example.com"

// TestImages_RegistryAndDigest_AreInReferences covers each way to name where the images are.
func TestImages_RegistryAndDigest_AreInReferences(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct{ set, want string }{
		{"image.registry=localhost:5000/team/", "localhost:5000/team/gpu-dra-driver/dra-kubelet-plugin:0.1.0"},
		{"image.tag=v2", "registry.example.com/gpu-dra-driver/mps-supervisor:v2"},
		{"image.digest=" + digest, "registry.example.com/gpu-dra-driver/dra-kubelet-plugin@" + digest},
		{"controller.image.digest=" + digest, "registry.example.com/gpu-dra-driver/dra-controller@" + digest},
		{"image.registry=,image.pullPolicy=Never", "gpu-dra-driver/dra-controller:0.1.0"},
		{"image.registry=,image.repository=a.io/p,controller.image.repository=a.io/c,mps.image.repository=a.io/s", "a.io/s:0.1.0"},
	} {
		if got := render(t, chart, "--set", c.set); !strings.Contains(got, "image: "+c.want+"\n") {
			t.Errorf("--set %s: no image %s", c.set, c.want)
		}
	}
}

// TestPods_UsersNamesOfTheChart_OccurOnce sets names that the chart has too: a list or map with a name twice is not applied.
func TestPods_UsersNamesOfTheChart_OccurOnce(t *testing.T) {
	var set []string
	for _, at := range []string{"controller", "kubeletPlugin.containers.gpus", "mps"} {
		set = append(set, at+".env[0].name=NVIDIA_VISIBLE_DEVICES,"+at+".env[0].value=mine")
	}
	set = append(set, `kubeletPlugin.nodeSelector.kubernetes\.io/os=windows`, `kubeletPlugin.podLabels.app\.kubernetes\.io/name=mine`)
	got := render(t, chart, "--set", strings.Join(set, ","))
	conform(t, got)
	for _, text := range []string{"kubernetes.io/os: windows", "app.kubernetes.io/name: mine", "value: void"} {
		if strings.Contains(got, text) {
			t.Errorf("the manifests have %q", text)
		}
	}
	if n := strings.Count(got, "value: mine"); n < 3 {
		t.Errorf("%d variables have the user's value, want those of all containers", n)
	}
}

// TestValues_ComponentWithoutPart_Renders sets values to nothing, as an administrator who wants less does.
func TestValues_ComponentWithoutPart_Renders(t *testing.T) {
	for _, c := range []struct{ set, absent string }{
		{"kubeletPlugin.containers.gpus.securityContext=null", "readOnlyRootFilesystem: true\n            runAsUser: 0"},
		{"kubeletPlugin.affinity=null", "nvidia.com/gpu.present"},
		// An upgrade with --reuse-values lacks the values that the release's chart did not have.
		{"kubeletPlugin.monitors=null,kubeletPlugin.mig.enabled=null,featureGates=null,sharing.config=null", "_DEVICES\n              value: \"false\""},
		{"kubeletPlugin.metrics.gpuHttpEndpoint=,controller.metrics.httpEndpoint=,networkPolicies.enabled=true", "name: metrics"},
		{"resources.gpus.enabled=false", "kind: ClusterRole"},
		{"webhook.tls.mode=secret,webhook.tls.secret.name=mine,webhook.tls.secret.caBundle=Q0E=", "-webhook-cert"},
	} {
		got := render(t, chart, "--set", c.set)
		if got != "" {
			conform(t, got)
		}
		if strings.Contains(got, c.absent) {
			t.Errorf("--set %s: the manifests have %q", c.set, c.absent)
		}
		notes(t, c.set)
	}
}

// TestValues_NullAgainWithReuseValues_Renders upgrades a release without affinity. Its chart's values lack the default then, so
// Helm keeps the null and validates it.
func TestValues_NullAgainWithReuseValues_Renders(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "values.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	without := regexp.MustCompile(`(?m)^  affinity:\n(    .*\n)+`).ReplaceAll(text, nil)
	if len(without) == len(text) {
		t.Fatal("the values have no affinity of the plugin")
	}
	if err := os.WriteFile(file, without, 0o600); err != nil {
		t.Fatal(err)
	}
	conform(t, render(t, dir, "--set", "kubeletPlugin.affinity=null"))
}

// TestOpenShift_ServesItsAPI_RenderedAsByValue compares what Helm sees in a cluster with the value for renderings without one.
func TestOpenShift_ServesItsAPI_RenderedAsByValue(t *testing.T) {
	seen, set := render(t, chart, "--api-versions", "security.openshift.io/v1"), render(t, chart, "--set", "openshift.enabled=true")
	if diff := cmp.Diff(set, seen); diff != "" || !strings.Contains(set, "system:openshift:scc:privileged") {
		t.Errorf("(-by value +by API)\n%s", diff)
	}
}

// conform checks manifests against the API's schemas only.
func conform(t *testing.T, manifests string) {
	t.Helper()
	out, problems, err := tool(t, []byte(manifests), "kubeconform", "-strict",
		"-schema-location", "testdata/schemas/{{.ResourceKind}}{{.KindSuffix}}.json", "-")
	if err != nil {
		t.Errorf("kubeconform: %v\n%s%s", err, out, problems)
	}
}

// cases are the value sets of testdata/values; each has a golden with the same name.
var cases = []string{
	"default", "simulated", "simulator", "nvidia-chart", "nvidia-values", "renamed", "off", "sharing", "controller-off", "cert-manager", "everything", "openshift",
}

func TestChart_Lint_Passes(t *testing.T) {
	for _, c := range cases {
		out, problems, err := tool(t, nil, "helm", "lint", "--strict", chart, "--set", registry, "--values", "testdata/values/"+c+".yaml")
		if err != nil {
			t.Errorf("%s: %v\n%s%s", c, err, out, problems)
		}
	}
}

// TestKubeconform_WrongManifest_Fails proves that kubeconform detects an invalid manifest.
func TestKubeconform_WrongManifest_Fails(t *testing.T) {
	good := render(t, chart)
	for name, change := range map[string][2]string{
		"an unknown field":      {"hostPID: true", "hostPid: true"},
		"a wrong type":          {"terminationGracePeriodSeconds: 15", "terminationGracePeriodSeconds: soon"},
		"a kind without a file": {"kind: DaemonSet", "kind: ReplicaSet"},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Fatalf("%s: %q is not in the manifests", name, change[0])
		}
		_, _, err := tool(t, []byte(bad), "kubeconform", "-strict",
			"-schema-location", "testdata/schemas/{{.ResourceKind}}{{.KindSuffix}}.json", "-")
		if err == nil {
			t.Errorf("%s passes", name)
		}
	}
}

func TestValues_Invalid_Refused(t *testing.T) {
	for _, c := range []struct{ name, set, want string }{
		{"images of Docker Hub", "image.registry=", "set image.registry to the registry of your images"},
		{"the image of NVIDIA's driver", "image.repository=registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu", "is the image of NVIDIA's driver"},
		{"a registry with a scheme", "image.registry=https://registry.example.com", "/image/registry"},
		{"a digest that is none", "mps.image.digest=latest", "/mps/image/digest"},
		{"a key of the config in capitals", "sharing.config.SHARING.strategy=MPS", "SHARING"},
		{"more shared memory than a node has", "mps.shmSize=1000Gi", "/mps/shmSize"},
		{"an unknown value", "nvidiaDriverroot=/", "nvidiaDriverroot"},
		{"an unknown value below", "kubeletPlugin.toleration=x", "toleration"},
		{"a relative driver root", "nvidiaDriverRoot=run/nvidia", "/nvidiaDriverRoot"},
		{"a driver name that is not a DNS name", "driverName=GPU", "/driverName"},
		{"a feature gate that is not a bool", "featureGates.A=maybe", "/featureGates/A"},
		{"a grace period too short to drain", "kubeletPlugin.terminationGracePeriodSeconds=5", "/terminationGracePeriodSeconds"},
		{"no service account at all", "serviceAccount.create=false", "serviceAccount.name"},
		{"a grace period without a unit", "deviceClasses.grace=10", "/deviceClasses/grace"},
		{"no grace at all", "deviceClasses.grace=0s", "/deviceClasses/grace"},
		{"a prefix that no name can have", "deviceClasses.models.prefix=GPU_", "/deviceClasses/models/prefix"},
		{"no replica", "controller.replicas=0", "/controller/replicas"},
		{"an image without a name", "controller.image.repository=", "/controller/image/repository"},
		{"an unknown value of the controller", "controller.replica=1", "replica"},
		{"tolerations that are not a list", "controller.tolerations=all", "/controller/tolerations"},
		{"metrics at no port", "controller.metrics.httpEndpoint=localhost", "/controller/metrics/httpEndpoint"},
		{"a port that the controller's user may not have", "controller.healthPort=80", "/controller/healthPort"},
		{"a port that does not exist", "webhook.port=94430", "/webhook/port"},
		{"a client authority that is a file", "webhook.tls.clientCA=/etc/ca.crt", "/webhook/tls/clientCA"},
		{"a certificate's Secret without a name", "webhook.tls.mode=secret", "webhook.tls.secret.name is needed"},
		{"a certificate that no API server verifies", "webhook.tls.mode=secret,webhook.tls.secret.name=mine", "webhook.tls.secret.caBundle is needed"},
		{"an issuer of NVIDIA's chart without a name", "webhook.tls.mode=cert-manager,webhook.tls.certManager.issuerType=issuer", "issuerName is needed"},
		{"an unknown failure policy", "webhook.failurePolicy=fail", "/webhook/failurePolicy"},
		{"an issuer without a name", "webhook.certManager.issuerRef.kind=ClusterIssuer", "/webhook/certManager/issuerRef"},
		{"a webhook of a driver whose name has no dot", "driverName=gpu", "webhook.enabled needs a driverName with a dot"},
		{"a protection that is not a bool", "uninstall.protect=always", "/uninstall/protect"},
		{"labels of nodes as a bool", "nodeLabels=false", "/nodeLabels"},
		{"an API server at no port", "networkPolicies.apiServerPorts={0}", "/networkPolicies/apiServerPorts/0"},
		{"fewer replicas than one", "sharing.config.sharing.timeSlicing.replicas=-3", "/sharing/config/sharing/timeSlicing/replicas"},
		{"a resource of no replicas", "sharing.config.sharing.mps.resources[0].replicas=0", "/sharing/config/sharing/mps/resources/0/replicas"},
		{"more shares than MPS has clients", "sharing.config.sharing.maxShares=49", "/sharing/config/sharing/maxShares"},
		{"an unknown strategy", "sharing.config.sharing.strategy=Turns", "/sharing/config/sharing/strategy"},
		{"no list of profiles", "publish[0].profiles=Some", "/publish/0/profiles"},
		{"an unknown choice of groups", "publish[0].groups=Some", "/publish/0/groups"},
		{"an unknown kind of shareable devices", "publish[0].shareable=GPU", "/publish/0/shareable"},
		{"no pod may be updated", "kubeletPlugin.updateStrategy.rollingUpdate.maxSurge=0%", "maxUnavailable and maxSurge are both 0"},
		{"more than all pods", "kubeletPlugin.updateStrategy.rollingUpdate.maxUnavailable=101%", "/maxUnavailable"},
		{"two actions that exclude each other", "policies.actions={Deny,Warn}", "/policies/actions"},
		{"an action twice", "policies.actions={Audit,Audit}", "/policies/actions"},
		{"no list of actions", "policies.actions=null", "'actions'"},
		{"actions for spec.nodeName that exclude each other", "policies.nodeName.actions={Deny,Warn}", "/policies/nodeName/actions"},
		{"an unknown action for spec.nodeName", "policies.nodeName.actions={Off}", "/policies/nodeName/actions"},
		{"a quote in the label for spec.nodeName", "policies.nodeName.namespaceLabel=it's", "/policies/nodeName/namespaceLabel"},
		{"no section", "webhook=null", "'webhook'"},
		{"a name in capitals", "fullnameOverride=GPU", "/fullnameOverride"},
		{"a name with an underscore", "fullnameOverride=gpu_driver", "/fullnameOverride"},
		{"a name that is cut off", "fullnameOverride=" + strings.Repeat("a", 41), "/fullnameOverride"},
		{"a part of a name with a dot", "nameOverride=gpu.driver", "/nameOverride"},
		{"a quote in a policy", "policies.requireQueue.label=it's", "/policies/requireQueue/label"},
		{"a quote in the taint of a policy", "policies.requireToleration.value=it's", "/policies/requireToleration/value"},
		{"a quote in the label of namespaces", "policies.fractionNamespaceLabel=it's", "/policies/fractionNamespaceLabel"},
		{"a label that no pod can have", "kubeletPlugin.podLabels.team=two words", "/kubeletPlugin/podLabels/team"},
		{"an extended resource without a domain", "deviceClasses.gpu.extendedResourceName=nvidia.com/gpu/0", "/deviceClasses/gpu/extendedResourceName"},
		{"an extended resource of Kubernetes", "deviceClasses.gpu.extendedResourceName=kubernetes.io/gpu", "/deviceClasses/gpu/extendedResourceName"},
		{"a prefix too long for its profiles", "deviceClasses.mig.extendedResourcePrefix=nvidia.com/" + strings.Repeat("m", 31), "/deviceClasses/mig/extendedResourcePrefix"},
		{"two servers of the plugin on a port", "kubeletPlugin.containers.gpus.healthcheckPort=8080", "have the same port 8080"},
		{"two servers of the controller on a port", "webhook.port=8081", "have the same port 8081"},
		{"a mount twice", "kubeletPlugin.cdiRoot=/var/lib/kubelet/plugins_registry/", "have the same directory"},
		{"a path above", "kubeletPlugin.hostSysRoot=/sys/..", "/kubeletPlugin/hostSysRoot"},
		{"a toleration with an unknown effect", "controller.tolerations[0].effect=Never", "/controller/tolerations/0/effect"},
		{"a secret without a name", "imagePullSecrets[0].Name=x", "/imagePullSecrets/0"},
		{"a variable with two values", "mps.env[0].name=A=B", "/mps/env/0/name"},
		{"an amount that is none", "mps.resources.limits.memory=much", "/mps/resources/limits/memory"},
		{"an interval that Prometheus does not read", "serviceMonitor.interval=1.5m", "/serviceMonitor/interval"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := template(t, "x", chart, "--set", registry, "--set", c.set); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want one that names %s", err, c.want)
			}
		})
	}
}

// fields returns the chart's values that the schema names by their paths, sections included.
func fields(t *testing.T) map[string]any {
	t.Helper()
	paths := map[string]any{}
	read := func(name string, into any) {
		text, err := os.ReadFile(filepath.Join(chart, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	var schema, values map[string]any
	read("values.schema.json", &schema)
	read("values.yaml", &values)
	var walk func(schema, values map[string]any, at string)
	walk = func(schema, values map[string]any, at string) {
		properties, _ := schema["properties"].(map[string]any)
		for name, value := range values {
			if of, ok := properties[name].(map[string]any); ok {
				paths[at+name] = value
				inner, _ := value.(map[string]any)
				walk(of, inner, at+name+".")
			}
		}
	}
	walk(schema, values, "")
	if len(paths) < 150 {
		t.Fatalf("only %d values: %v", len(paths), paths)
	}
	return paths
}

// TestValues_NullOfAnyField_RenderedOrNamed removes each value and each section, with all features switched on.
func TestValues_NullOfAnyField_RenderedOrNamed(t *testing.T) {
	const on = "policies.requireToleration.enabled=true,policies.requireQueue.enabled=true,policies.maxGPUs=4,policies.fractionNamespaceLabel=a," +
		"serviceMonitor.enabled=true,dashboards.enabled=true,prometheusRule.enabled=true,networkPolicies.enabled=true,criticalPodsQuota.enabled=true"
	all := render(t, chart, "--set", on)
	for path := range fields(t) {
		if !seedtest.Chosen(path) {
			continue
		}
		out, err := template(t, "gpu-dra-driver", chart, "--namespace", "gpu-dra-driver", "--set", registry, "--set", on, "--set", path+"=null")
		last := path[strings.LastIndex(path, ".")+1:]
		switch {
		case err != nil && !strings.Contains(err.Error(), "missing propert") && !strings.Contains(err.Error(), "'"+last+"'"):
			t.Errorf("%s=null: %v", path, err)
		case out == all:
		case err == nil && strings.Contains(out, "validationActions: null"), err == nil && strings.Contains(out, "image: registry.example.com/:"):
			t.Errorf("%s=null renders objects that the API server refuses", path)
		case err == nil:
			conform(t, out)
		}
	}
}

// TestValues_NullOfTextThatMayBeEmpty_RendersAsEmpty removes values with null, which is Helm's way to unset one.
func TestValues_NullOfTextThatMayBeEmpty_RendersAsEmpty(t *testing.T) {
	n := 0
	for path, value := range fields(t) {
		if _, text := value.(string); !text || !seedtest.Chosen(path) {
			continue
		}
		set := func(value string) (string, error) {
			return template(t, "gpu-dra-driver", chart, "--set", registry, "--set", path+"="+value)
		}
		empty, err := set("")
		if err != nil {
			continue
		}
		n++
		null, err := set("null")
		if err != nil {
			t.Errorf("%s=null: %v", path, err)
		} else if diff := cmp.Diff(empty, null); diff != "" {
			t.Errorf("%s=null renders other objects than an empty value:\n%s", path, diff)
		}
	}
	if n < seedtest.Count(20) {
		t.Errorf("only %d values may be empty", n)
	}
}

// TestQuota_GKE_AllowsThePriorityClasses has an API of GKE, the value, and pods without such classes.
func TestQuota_GKE_AllowsThePriorityClasses(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, nil},
		{[]string{"--api-versions", "networking.gke.io/v1"}, []string{"system-node-critical", "system-cluster-critical"}},
		{[]string{"--set", "criticalPodsQuota.enabled=true"}, []string{"system-node-critical", "system-cluster-critical"}},
		{[]string{"--set", "criticalPodsQuota.enabled=true,controller.priorityClassName=mine"}, []string{"system-node-critical"}},
		{[]string{"--set", "criticalPodsQuota.enabled=true,controller.priorityClassName=,kubeletPlugin.priorityClassName="}, nil},
	} {
		quotas := decode[corev1.ResourceQuota](t, render(t, chart, c.args...), "ResourceQuota")
		if len(quotas) > 1 || (len(quotas) == 1) != (c.want != nil) {
			t.Errorf("%q: %d quotas", c.args, len(quotas))
		}
		for _, q := range quotas {
			if got := q.Spec.ScopeSelector.MatchExpressions[0].Values; !slices.Equal(got, c.want) {
				t.Errorf("%q: the quota is for %q, want %q", c.args, got, c.want)
			}
		}
	}
}

// TestController_NodesForAddOns_Tolerated is for the system pools of AKS.
func TestController_NodesForAddOns_Tolerated(t *testing.T) {
	d := decode[appsv1.Deployment](t, render(t, chart), "Deployment")["gpu-dra-driver-controller"]
	taint := corev1.Taint{Key: "CriticalAddonsOnly", Value: "true", Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(d.Spec.Template.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == taint.Key && t.Operator == corev1.TolerationOpExists }) {
		t.Errorf("tolerations %v", d.Spec.Template.Spec.Tolerations)
	}
}

// TestNames_OfRelease_AreNamesOfServices has names that Helm allows.
func TestNames_OfRelease_AreNamesOfServices(t *testing.T) {
	for _, release := range []string{"a.b", "gpu-dra-driver.v2", strings.Repeat("a", 39) + ".b", strings.Repeat("ab-", 17) + "x"} {
		out, err := template(t, release, chart, "--set", registry)
		if err != nil {
			t.Errorf("%s: %v", release, err)
			continue
		}
		for name := range decode[corev1.Service](t, out, "Service") {
			if errs := validation.IsDNS1035Label(name); len(errs) > 0 {
				t.Errorf("%s: Service %s: %v", release, name, errs)
			}
		}
	}
	for _, c := range []struct {
		set     string
		refused bool
	}{
		{"webhook.enabled=true", true},
		{"webhook.enabled=false,serviceMonitor.enabled=true", true},
		{"webhook.enabled=false", false},
		{"controller.enabled=false,serviceMonitor.enabled=true", false},
	} {
		out, err := template(t, "4gpu", chart, "--set", registry, "--set", c.set)
		if (err != nil) != c.refused || c.refused && !strings.Contains(err.Error(), "set fullnameOverride") {
			t.Errorf("a release with a digit first, and %s: %v", c.set, err)
		}
		if err == nil && len(decode[corev1.Service](t, out, "Service")) > 0 {
			t.Errorf("%s renders a Service whose name begins with a digit", c.set)
		}
	}
}
