// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the goldens")

const chart = "gpu-dra-driver"

// tool runs a program of hack/tool.sh and returns its stdout and stderr.
func tool(t *testing.T, stdin []byte, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join("..", "..", "hack", "tool.sh"), args...)
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &problems
	// The output must not depend on a cluster or on user settings.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+os.DevNull, "HELM_NAMESPACE=")
	err = cmd.Run()
	return out.String(), problems.String(), err
}

// render returns the manifests of the chart in a directory.
func render(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, problems, err := tool(t, nil, append([]string{"helm", "template", "gpu-dra-driver", dir, "--namespace", "gpu-dra-driver"}, args...)...)
	if err != nil {
		t.Fatalf("helm template %q: %v\n%s", args, err, problems)
	}
	return out
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

// cases are the value sets of testdata/values; each has a golden with the same name. The chart's own choice of the
// API version is visible only on a cluster: helm template can add versions to its built-in ones, but not remove any.
var cases = []string{
	"default", "simulated", "nvidia-chart", "renamed", "off", "v1beta2", "sharing", "controller-off", "cert-manager", "everything",
}

func TestChart_Lint_Passes(t *testing.T) {
	for _, c := range cases {
		args := []string{"helm", "lint", "--strict", chart, "--values", "testdata/values/" + c + ".yaml"}
		if c == "v1beta2" {
			args = append(args, "--kube-version", "1.33.0") // newer ones call that API deprecated
		}
		out, problems, err := tool(t, nil, args...)
		if err != nil {
			t.Errorf("%s: %v\n%s%s", c, err, out, problems)
		}
	}
}

// TestKubeconform_WrongManifest_Fails proves that kubeconform detects an invalid manifest.
func TestKubeconform_WrongManifest_Fails(t *testing.T) {
	good := render(t, chart)
	for name, change := range map[string][2]string{
		"an unknown field":      {"hostPID: false", "hostPid: false"},
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
		{"an unknown value", "nvidiaDriverroot=/", "nvidiaDriverroot"},
		{"an unknown value below", "kubeletPlugin.toleration=x", "toleration"},
		{"a relative driver root", "nvidiaDriverRoot=run/nvidia", "/nvidiaDriverRoot"},
		{"a driver name that is no DNS name", "driverName=GPU", "/driverName"},
		{"a feature gate that is no bool", "featureGates.A=maybe", "/featureGates/A"},
		{"a grace period too short to drain", "kubeletPlugin.terminationGracePeriodSeconds=5", "/terminationGracePeriodSeconds"},
		{"no service account at all", "serviceAccount.create=false", "serviceAccount.name"},
		{"a grace period without a unit", "deviceClasses.grace=10", "/deviceClasses/grace"},
		{"no grace at all", "deviceClasses.grace=0s", "/deviceClasses/grace"},
		{"a prefix that no name can have", "deviceClasses.models.prefix=GPU_", "/deviceClasses/models/prefix"},
		{"no replica", "controller.replicas=0", "/controller/replicas"},
		{"an image without a name", "controller.image.repository=", "/controller/image/repository"},
		{"an unknown value of the controller", "controller.replica=1", "replica"},
		{"tolerations that are no list", "controller.tolerations=all", "/controller/tolerations"},
		{"metrics at no port", "controller.metrics.httpEndpoint=localhost", "/controller/metrics/httpEndpoint"},
		{"a port that the controller's user may not have", "controller.healthPort=80", "/controller/healthPort"},
		{"a port that does not exist", "webhook.port=94430", "/webhook/port"},
		{"an unknown failure policy", "webhook.failurePolicy=fail", "/webhook/failurePolicy"},
		{"an issuer without a name", "webhook.certManager.issuerRef.kind=ClusterIssuer", "/webhook/certManager/issuerRef"},
		{"a webhook of a driver whose name has no dot", "driverName=gpu", "webhook.enabled needs a driverName with a dot"},
		{"a protection that is no bool", "uninstall.protect=always", "/uninstall/protect"},
		{"labels of nodes as a bool", "nodeLabels=false", "/nodeLabels"},
		{"an API server at no port", "networkPolicies.apiServerPorts={0}", "/networkPolicies/apiServerPorts/0"},
		{"fewer replicas than one", "sharing.config.sharing.timeSlicing.replicas=-3", "/sharing/config/sharing/timeSlicing/replicas"},
		{"a resource of no replicas", "sharing.config.sharing.mps.resources[0].replicas=0", "/sharing/config/sharing/mps/resources/0/replicas"},
		{"more shares than MPS has clients", "sharing.config.sharing.maxShares=49", "/sharing/config/sharing/maxShares"},
		{"an unknown strategy", "sharing.config.sharing.strategy=Turns", "/sharing/config/sharing/strategy"},
		{"no list of profiles", "publish[0].profiles=Some", "/publish/0/profiles"},
		{"an unknown kind of shareable devices", "publish[0].shareable=GPU", "/publish/0/shareable"},
		{"an interval that Prometheus does not read", "serviceMonitor.interval=1.5m", "/serviceMonitor/interval"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, problems, err := tool(t, nil, "helm", "template", "x", chart, "--set", c.set)
			if err == nil || !strings.Contains(problems, c.want) {
				t.Errorf("error = %v, want one that names %s:\n%s", err, c.want, problems)
			}
		})
	}
}
