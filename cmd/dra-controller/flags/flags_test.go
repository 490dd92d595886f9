// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"gpu-dra-driver/cmd/envflags"
)

func TestParse_FewFlags_OthersHaveDefaults(t *testing.T) {
	c, err := Parse([]string{"--webhook-service=s", "--webhook-configuration=c", "--cert-secret=k"}, []string{"POD_NAMESPACE=n", "NODE_LABELS=false"})
	if err != nil || c.LeaseName != "dra-controller.gpu.nvidia.com" || c.PodNamespace != "n" || c.NodeLabels || !c.LeaderElect || c.WebhookPort != 9443 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := Parse([]string{"--help"}, nil); !errors.Is(err, pflag.ErrHelp) {
		t.Error(err)
	}
	if c, err := Parse([]string{"--version"}, nil); err != nil || !c.Version {
		t.Error(c, err)
	}
	New(new(Config)).VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(envflags.Usage(New(new(Config))), "--"+f.Name) {
			t.Errorf("the usage lacks --%s", f.Name)
		}
	})
}

func TestParse_InvalidValue_NamesFlag(t *testing.T) {
	for flags, want := range map[string]string{
		"--webhook=false": "--pod-namespace", "--pod-namespace=n": "--cert-secret", "--pod-namespace=n --webhook-port=0": "--webhook-port: 0",
		"--driver-name=GPU": "--driver-name", "--check=all": `--check: "all"`, "--class-grace=0s": "--class-grace", "--gpu-prices=L40S=-1": `--gpu-prices: L40S="-1"`, "x": `"x"`,
	} {
		if _, err := Parse(strings.Fields(flags), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flags, err, want)
		}
	}
	if _, err := Parse([]string{"--check=uninstall", "--pod-namespace=n"}, nil); err != nil {
		t.Errorf("a check needs no webhook: %v", err)
	}
}
