// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// decode returns the objects of a kind in manifests, by name.
func decode[T any](t *testing.T, manifests, kind string) map[string]T {
	t.Helper()
	out := map[string]T{}
	for doc := range strings.SplitSeq(manifests, "\n---\n") {
		var is struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(doc), &is); err != nil {
			t.Fatal(err)
		}
		if is.Kind != kind {
			continue
		}
		var o T
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		out[is.Metadata.Name] = o
	}
	return out
}

// valueOf returns the value of a variable, or the path of the field that it comes from. Of an amount it returns a number.
func valueOf(e corev1.EnvVar) string {
	switch {
	case e.ValueFrom == nil:
		return e.Value
	case e.ValueFrom.ResourceFieldRef != nil:
		return "1"
	}
	return e.ValueFrom.FieldRef.FieldPath
}

func environ(c corev1.Container) map[string]string {
	out := map[string]string{}
	for _, e := range c.Env {
		out[e.Name] = valueOf(e)
	}
	return out
}

// TestController_Environment_NamesItsObjects compares the controller's variables with the objects' names.
func TestController_Environment_NamesItsObjects(t *testing.T) {
	for _, values := range []string{"default", "renamed", "cert-manager"} {
		manifests := render(t, chart, "--values", "testdata/values/"+values+".yaml")
		for name, d := range decode[appsv1.Deployment](t, manifests, "Deployment") {
			pod := d.Spec.Template.Spec
			env := environ(pod.Containers[0])
			if env["POD_NAMESPACE"] != "metadata.namespace" {
				t.Errorf("%s: its environment is %v", name, env)
			}
			if _, ok := decode[corev1.ServiceAccount](t, manifests, "ServiceAccount")[pod.ServiceAccountName]; !ok {
				t.Errorf("%s: no service account %s", name, pod.ServiceAccountName)
			}
			service, ok := decode[corev1.Service](t, manifests, "Service")[env["WEBHOOK_SERVICE"]]
			if !ok || !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
				t.Errorf("%s: no service %s that leads to it", name, env["WEBHOOK_SERVICE"])
			}
			configuration := decode[admissionv1.ValidatingWebhookConfiguration](t, manifests, "ValidatingWebhookConfiguration")[env["WEBHOOK_CONFIGURATION"]]
			if len(configuration.Webhooks) != 4 || configuration.Webhooks[0].ClientConfig.Service.Name != service.Name {
				t.Errorf("%s: no webhook configuration %s", name, env["WEBHOOK_CONFIGURATION"])
			}
			for _, h := range configuration.Webhooks {
				if h.ClientConfig.CABundle != nil {
					t.Errorf("%s: an upgrade would replace the authority of %s", name, h.Name)
				}
			}
			if secrets := decode[corev1.Secret](t, manifests, "Secret"); len(secrets) > 0 {
				t.Errorf("%s: the certificate's issuer must create the Secret, but the chart has %v", name, secrets)
			}
			if len(pod.Volumes) > 0 {
				t.Errorf("%s: the certificate's key is to be in memory only, and there are %+v", name, pod.Volumes)
			}
		}
	}
}

// TestChecks_PodAndJob_RunLikeTheController checks that the checks have the controller's settings and different
// labels.
func TestChecks_PodAndJob_RunLikeTheController(t *testing.T) {
	manifests := render(t, chart)
	d := decode[appsv1.Deployment](t, manifests, "Deployment")["gpu-dra-driver-controller"]
	test := decode[corev1.Pod](t, manifests, "Pod")["gpu-dra-driver-test"]
	job := decode[batchv1.Job](t, manifests, "Job")["gpu-dra-driver-uninstall"]
	for check, pod := range map[string]corev1.PodTemplateSpec{
		"installation": {ObjectMeta: test.ObjectMeta, Spec: test.Spec}, "uninstall": job.Spec.Template,
	} {
		c, controller := pod.Spec.Containers[0], d.Spec.Template.Spec.Containers[0]
		if diff := cmp.Diff(environ(controller), environ(c)); diff != "" || c.Image != controller.Image {
			t.Errorf("%s, %s (-controller +check):\n%s", check, c.Image, diff)
		}
		if !slices.Equal(c.Args, []string{"--check=" + check}) || pod.Spec.ServiceAccountName != d.Spec.Template.Spec.ServiceAccountName {
			t.Errorf("%s: %+v", check, pod.Spec)
		}
		if labels.SelectorFromSet(d.Spec.Selector.MatchLabels).Matches(labels.Set(pod.Labels)) {
			t.Errorf("%s: the pod would be asked as a webhook", check)
		}
	}
	if job.Annotations["helm.sh/hook"] != "pre-delete" || test.Annotations["helm.sh/hook"] != "test" || *job.Spec.BackoffLimit != 0 {
		t.Errorf("%v, %v", job.Annotations, test.Annotations)
	}
	if got := decode[batchv1.Job](t, render(t, chart, "--set", "uninstall.protect=false"), "Job"); len(got) > 0 {
		t.Errorf("nothing is protected, and there is %v", got)
	}
}

// TestController_Updates_OneReplicaAlwaysAnswers checks updates and drains.
func TestController_Updates_OneReplicaAlwaysAnswers(t *testing.T) {
	for replicas, budgets := range map[string]int{"1": 0, "2": 1, "3": 1} {
		manifests := render(t, chart, "--set", "controller.replicas="+replicas)
		if got := decode[policyv1.PodDisruptionBudget](t, manifests, "PodDisruptionBudget"); len(got) != budgets {
			t.Errorf("%s replicas: %d disruption budgets, want %d", replicas, len(got), budgets)
		}
		d := decode[appsv1.Deployment](t, manifests, "Deployment")["gpu-dra-driver-controller"]
		onHost := decode[appsv1.Deployment](t, render(t, chart, "--set", "webhook.hostNetwork=true,controller.replicas="+replicas), "Deployment")["gpu-dra-driver-controller"]
		if s := onHost.Spec.Strategy.RollingUpdate; *s.MaxUnavailable != intstr.FromInt32(1) || *s.MaxSurge != intstr.FromInt32(0) || !onHost.Spec.Template.Spec.HostNetwork {
			t.Errorf("%s replicas on the nodes' network: a new pod would wait for the ports of an old one: %+v", replicas, s)
		}
		if *d.Spec.Strategy.RollingUpdate.MaxUnavailable != intstr.FromInt32(0) || d.Spec.Template.Spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds == 0 {
			t.Errorf("%s replicas: %+v", replicas, d.Spec.Strategy)
		}
	}
}

// TestController_FeatureOff_LosesItsPermissions checks that the controller has only the permissions of its enabled
// features.
func TestController_FeatureOff_LosesItsPermissions(t *testing.T) {
	for _, c := range []struct {
		set  string
		lost []string
	}{
		{"deviceClasses.mig.enabled=false", nil},
		{"deviceClasses.gpu.enabled=false,deviceClasses.mig.enabled=false,deviceClasses.models.enabled=false,deviceClasses.nvlink.enabled=false", []string{
			"create deviceclasses", "patch deviceclasses",
		}},
		{"nodeLabels.enabled=false", []string{"get nodes", "patch nodes"}},
		{"podEvents.enabled=false", []string{
			"get events", "get jobs", "get pods", "get replicasets", "get statefulsets", "list devicetaintrules", "list events", "watch events",
		}},
		{"nodeLabels.enabled=false,podEvents.enabled=false", []string{
			"get events", "get jobs", "get nodes", "get pods", "get replicasets", "get statefulsets", "list devicetaintrules", "list events", "list nodes",
			"patch nodes", "watch events", "watch nodes",
		}},
		{"webhook.enabled=false", []string{
			"create secrets", "delete validatingwebhookconfigurations/gpu-dra-driver-webhook", "get gpubudgets", "get namespaces/gpu-dra-driver",
			"get services/gpu-dra-driver-webhook", "list gpubudgets", "list secrets/gpu-dra-driver-webhook-cert",
			"list validatingwebhookconfigurations/gpu-dra-driver-webhook", "update gpubudgets/status", "update secrets/gpu-dra-driver-webhook-cert",
			"update validatingwebhookconfigurations/gpu-dra-driver-webhook", "watch gpubudgets", "watch secrets/gpu-dra-driver-webhook-cert",
			"watch validatingwebhookconfigurations/gpu-dra-driver-webhook",
		}},
		{"budgets.enabled=false", []string{"get gpubudgets", "list gpubudgets", "update gpubudgets/status", "watch gpubudgets"}},
		{"webhook.certManager.enabled=true", []string{
			"create secrets", "delete validatingwebhookconfigurations/gpu-dra-driver-webhook", "get namespaces/gpu-dra-driver", "update secrets/gpu-dra-driver-webhook-cert",
		}},
		{"webhook.certManager.enabled=true,budgets.enabled=false", []string{
			"create secrets", "delete validatingwebhookconfigurations/gpu-dra-driver-webhook", "get gpubudgets", "get namespaces/gpu-dra-driver", "list gpubudgets",
			"list validatingwebhookconfigurations/gpu-dra-driver-webhook", "update gpubudgets/status", "update secrets/gpu-dra-driver-webhook-cert",
			"update validatingwebhookconfigurations/gpu-dra-driver-webhook", "watch gpubudgets", "watch validatingwebhookconfigurations/gpu-dra-driver-webhook",
		}},
		{"webhook.certManager.enabled=true,webhook.tls.clientCA=-----BEGIN CERTIFICATE-----", []string{
			"create secrets", "delete validatingwebhookconfigurations/gpu-dra-driver-webhook", "get namespaces/gpu-dra-driver",
			"list validatingwebhookconfigurations/gpu-dra-driver-webhook", "update secrets/gpu-dra-driver-webhook-cert", "update validatingwebhookconfigurations/gpu-dra-driver-webhook",
			"watch validatingwebhookconfigurations/gpu-dra-driver-webhook",
		}},
	} {
		all := permissions(t)
		for p := range permissions(t, "--set", c.set) {
			if !all[p] {
				t.Errorf("%s: it may also %s", c.set, p)
			}
			delete(all, p)
		}
		if diff := cmp.Diff(c.lost, slices.Sorted(maps.Keys(all))); diff != "" {
			t.Errorf("%s: what it may not (-want +got):\n%s", c.set, diff)
		}
	}
}

// TestController_Preemption_MayEvictOnlyWithTheValue checks the rights that the value adds.
func TestController_Preemption_MayEvictOnlyWithTheValue(t *testing.T) {
	off := permissions(t)
	for set, want := range map[string][]string{
		"preemption.enabled=true": {
			"create pods/eviction", "get podgroups", "get workloads", "list poddisruptionbudgets", "list workloads", "patch pods/status",
			"watch poddisruptionbudgets",
		},
		"preemption.enabled=true,preemption.exemptGroups=false,preemption.violateDisruptionBudgets=true": {
			"create pods/eviction", "delete pods", "list poddisruptionbudgets", "patch pods/status", "watch poddisruptionbudgets",
		},
		"preemption.violateDisruptionBudgets=true": nil,
	} {
		var more []string
		for p := range permissions(t, "--set", set) {
			if !off[p] {
				more = append(more, p)
			}
		}
		slices.Sort(more)
		if diff := cmp.Diff(want, more); diff != "" {
			t.Errorf("%s: what it may besides (-want +got):\n%s", set, diff)
		}
	}
}

// permissions lists the controller's permissions, as "verb resource" or "verb resource/name".
func permissions(t *testing.T, args ...string) map[string]bool {
	t.Helper()
	manifests := render(t, chart, append([]string{"--show-only", "templates/controllerrbac.yaml"}, args...)...)
	var rules []rbacv1.PolicyRule
	for _, r := range decode[rbacv1.ClusterRole](t, manifests, "ClusterRole") {
		rules = append(rules, r.Rules...)
	}
	for _, r := range decode[rbacv1.Role](t, manifests, "Role") {
		rules = append(rules, r.Rules...)
	}
	out := map[string]bool{}
	for _, r := range rules {
		for _, verb := range r.Verbs {
			for _, resource := range r.Resources {
				if len(r.ResourceNames) == 0 {
					out[verb+" "+resource] = true
				}
				for _, name := range r.ResourceNames {
					out[verb+" "+resource+"/"+name] = true
				}
			}
		}
	}
	return out
}
