// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/cluster/waiting"
)

// otherResource says what a pod can ask for instead of a resource that nothing serves, as the end of a sentence, or
// nothing.
func (a *asker) otherResource(name corev1.ResourceName) string {
	switch name {
	case "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores":
		return "; HAMi's limits need the chart value podShares and the namespace's label " + a.Driver +
			"/pod-shares=true; kubectl gpu run NAME --image IMAGE --memory 10Gi prints a share's claim"
	}
	var known []string
	for _, class := range a.Cluster.Classes {
		if class == nil {
			continue
		}
		if served, ours := strings.CutPrefix(string(selector.Explicit(class)), "nvidia.com/"); ours {
			known = append(known, served)
		}
	}
	text := ""
	if strings.HasSuffix(string(name), ".shared") {
		text = "; nodes offer it by replicas with renameByDefault in sharing.config"
	}
	if near := admission.Nearest(strings.TrimPrefix(string(name), "nvidia.com/"), known); near != "" {
		text += "; is nvidia.com/" + near + " meant?"
	}
	return text
}

// otherTemplate says what a pod can name instead of a ResourceClaimTemplate that does not exist.
func otherTemplate(
	at types.NamespacedName, templates map[types.NamespacedName]*resourceapi.ResourceClaimTemplate,
	claims waiting.Claims,
) string {
	if claims.Claim(at.Namespace, at.Name) != nil {
		return "a ResourceClaim of this name does: write resourceClaimName"
	}
	var known []string
	for t := range templates {
		if t.Namespace == at.Namespace {
			known = append(known, t.Name)
		}
	}
	slices.Sort(known)
	if near := admission.Nearest(at.Name, known); near != "" {
		return "create it, or is " + near + " meant?"
	}
	return "create it"
}

var (
	belowExactly = regexp.MustCompile(`unknown field "spec\.(spec\.)?devices\.requests\[\d+\]\.` +
		`(deviceClassName|selectors|allocationMode|count|adminAccess|tolerations|capacity)"`)
	inBytes = regexp.MustCompile(`"([0-9.]+(?:k|[KMGTP]i?))B"`)
)

// mended says how a field that an API server refuses is written, as the end of a sentence, or nothing.
func mended(refusal, object string) string {
	if belowExactly.MatchString(refusal) {
		return ` (in resource.k8s.io/v1 it stands below "exactly:")`
	}
	amount := inBytes.FindStringSubmatch(object)
	if amount != nil && strings.Contains(refusal, "quantities must match") {
		return " (write " + strings.Replace(amount[1], "K", "k", 1) + " for " + amount[1] + "B)"
	}
	return ""
}
