// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

// TestViewRole_Default_ReadsDevicesAndNothingElse keeps secrets and changes out of a role that many people have.
func TestViewRole_Default_ReadsDevicesAndNothingElse(t *testing.T) {
	find := func(args ...string) (out []rbacv1.ClusterRole) {
		for _, r := range decode[rbacv1.ClusterRole](t, render(t, chart, args...), "ClusterRole") {
			if r.Name == "gpu-dra-driver-view" {
				out = append(out, r)
			}
		}
		return out
	}
	roles := find()
	if len(roles) != 1 || roles[0].Labels["rbac.authorization.k8s.io/aggregate-to-view"] != "true" {
		t.Fatalf("%d roles: %v", len(roles), roles)
	}
	want := []rbacv1.PolicyRule{{
		APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceslices", "deviceclasses", "devicetaintrules"}, Verbs: []string{"get", "list", "watch"},
	}}
	if diff := cmp.Diff(want, roles[0].Rules); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if roles := find("--set", "viewRole.enabled=false"); len(roles) != 0 {
		t.Errorf("disabled: %v", roles)
	}
}
