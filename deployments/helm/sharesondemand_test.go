// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"strings"
	"testing"
)

// TestSharesOnDemand_PolicyAndController_BelongTogether has the controller share GPUs on demand only if claims for shares wait
// for them.
func TestSharesOnDemand_PolicyAndController_BelongTogether(t *testing.T) {
	const capable = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
	for name, c := range map[string]struct {
		args []string
		want bool
	}{
		"by default":              {[]string{"--api-versions", capable}, true},
		"on an older API server":  {nil, false},
		"shares of all GPUs":      {[]string{"--api-versions", capable, "--set", "publish[0].shareable=All"}, false},
		"all devices":             {[]string{"--api-versions", capable, "--set-json", "publish=[]"}, false},
		"by sharing.config":       {[]string{"--api-versions", capable, "--set-json", `sharing.config={"publish":[{"shareable":"Auto"}]}`}, true},
		"without the controller":  {[]string{"--api-versions", capable, "--set", "controller.enabled=false"}, false},
		"with another driver":     {[]string{"--api-versions", capable, "--set", "driverName=gpu.example.com"}, true},
		"without GPUs to publish": {[]string{"--api-versions", capable, "--set", "resources.gpus.enabled=false", "--set", "gpuResourcesEnabledOverride=true"}, false},
	} {
		got := render(t, chart, c.args...)
		for _, part := range []string{"kind: MutatingAdmissionPolicy\n", "kind: MutatingAdmissionPolicyBinding\n", "name: SHARES_ON_DEMAND\n"} {
			if strings.Contains(got, part) != c.want {
				t.Errorf("%s: %q: %v, want %v", name, strings.TrimSpace(part), !c.want, c.want)
			}
		}
	}
}
