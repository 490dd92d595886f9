// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	controllerflags "gpu-dra-driver/cmd/dra-controller/flags"
	pluginflags "gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/cmd/envflags"
)

// TestPluginFlags_ChartArguments_Parsed checks that the plugin accepts the chart's arguments and environment, and
// that every variable belongs to a flag.
func TestPluginFlags_ChartArguments_Parsed(t *testing.T) {
	known := map[string]bool{"NVIDIA_VISIBLE_DEVICES": true} // for the NVIDIA runtime
	pluginflags.New(new(pluginflags.Config)).VisitAll(func(f *pflag.Flag) { known[envflags.Env(f.Name)] = true })
	for _, values := range []string{"default", "simulated"} {
		var ds appsv1.DaemonSet
		manifest := render(t, chart, "--values", "testdata/values/"+values+".yaml", "--show-only", "templates/kubeletplugin.yaml")
		if err := yaml.UnmarshalStrict([]byte(manifest), &ds); err != nil {
			t.Fatal(err)
		}
		c := ds.Spec.Template.Spec.Containers[0]
		var environ []string
		for _, e := range c.Env {
			if !known[e.Name] {
				t.Errorf("%s is not a flag of the plugin", e.Name)
			}
			if e.ValueFrom != nil {
				e.Value = strings.ReplaceAll(valueOf(e), ".", "-")
			}
			environ = append(environ, e.Name+"="+e.Value)
		}
		config, err := pluginflags.Parse(c.Args, environ)
		if err != nil {
			t.Fatalf("%s: %v", values, err)
		}
		if config.Verbosity != 2 || config.ProcRoot != "/host/proc" || config.HTTPEndpoint != ":8080" || config.PodUID == "" {
			t.Errorf("%s: the plugin understands %+v", values, config)
		}
	}
}

// TestControllerFlags_ChartArguments_Parsed checks the same for the controller and the checks with its image.
func TestControllerFlags_ChartArguments_Parsed(t *testing.T) {
	known := map[string]bool{"GOMAXPROCS": true} // an administrator's own
	controllerflags.New(new(controllerflags.Config)).VisitAll(func(f *pflag.Flag) { known[envflags.Env(f.Name)] = true })
	for _, values := range []string{"default", "cert-manager", "everything", "openshift"} {
		var d appsv1.Deployment
		manifest := render(t, chart, "--values", "testdata/values/"+values+".yaml", "--show-only", "templates/controller.yaml")
		for doc := range strings.SplitSeq(manifest, "\n---\n") {
			if !strings.Contains(doc, "\nkind: Deployment\n") {
				continue
			}
			if err := yaml.UnmarshalStrict([]byte(doc), &d); err != nil {
				t.Fatal(err)
			}
		}
		c := d.Spec.Template.Spec.Containers[0]
		var environ []string
		for _, e := range c.Env {
			if !known[e.Name] {
				t.Errorf("%s: %s is not a flag of the controller", values, e.Name)
			}
			if e.ValueFrom != nil {
				e.Value = strings.ReplaceAll(valueOf(e), ".", "-")
			}
			environ = append(environ, e.Name+"="+e.Value)
		}
		config, err := controllerflags.Parse(c.Args, environ)
		if err != nil {
			t.Fatalf("%s: %v", values, err)
		}
		if config.PodNamespace == "" || config.WebhookService == "" || config.CertSecret == "" || config.RotateCerts != (values != "cert-manager" && values != "everything") {
			t.Errorf("%s: the controller understands %+v", values, config)
		}
		if (config.ClientAuthorities != nil) != (values == "openshift") {
			t.Errorf("%s: client authorities %v", values, config.ClientAuthorities)
		}
		for _, check := range []string{controllerflags.CheckInstallation, controllerflags.CheckUninstall} {
			if _, err := controllerflags.Parse([]string{"--check=" + check}, environ); err != nil {
				t.Errorf("%s: --check=%s: %v", values, check, err)
			}
		}
	}
}
