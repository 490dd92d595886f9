// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/gpu"
)

// QuotaEntry returns the entry of a ResourceQuota that counts the devices of a class.
func QuotaEntry(class string) corev1.ResourceName {
	return corev1.ResourceName(class + corev1.ResourceClaimsPerClass)
}

// QuotaClasses returns the classes that hand out GPUs of the driver, or parts of them, by name. Classes of monitor
// devices do not.
func QuotaClasses(o Objects, classes []resourceapi.DeviceClass) (out []resourceapi.DeviceClass) {
	c := newClassifier(o, classes)
	for _, class := range classes {
		monitors := slices.ContainsFunc(selector.Expressions(class.Spec.Selectors), func(e string) bool {
			return c.Read(e).Type(o.Driver) == string(gpu.KindMonitor)
		})
		if !monitors && c.selects(class.Spec.Selectors) {
			out = append(out, class)
		}
	}
	slices.SortFunc(out, func(a, b resourceapi.DeviceClass) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// QuotaHole is a namespace whose ResourceQuotas limit some of the driver's classes, and leave others unlimited.
type QuotaHole struct {
	Namespace string
	// Limited and Open are names of classes.
	Limited, Open []string
}

// QuotaHoles returns the namespaces whose ResourceQuotas have holes, but for those with a budget.
func QuotaHoles(
	quotas []corev1.ResourceQuota, classes []resourceapi.DeviceClass, budgeted sets.Set[string],
) (out []QuotaHole) {
	hard := map[string]sets.Set[corev1.ResourceName]{}
	for _, q := range quotas {
		if hard[q.Namespace] == nil {
			hard[q.Namespace] = sets.New[corev1.ResourceName]()
		}
		for name, n := range q.Spec.Hard {
			if name != claimCount || n.IsZero() { // A number of claims limits no devices, unless it is 0.
				hard[q.Namespace].Insert(name)
			}
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(hard)) {
		has := hard[namespace]
		h := QuotaHole{Namespace: namespace}
		for _, class := range classes {
			if limits(has, class) {
				h.Limited = append(h.Limited, class.Name)
			} else {
				h.Open = append(h.Open, class.Name)
			}
		}
		if len(h.Limited) > 0 && len(h.Open) > 0 && !has.Has(claimCount) && !budgeted.Has(namespace) {
			out = append(out, h)
		}
	}
	return out
}

const claimCount corev1.ResourceName = "count/resourceclaims.resource.k8s.io"

// limits reports whether a quota counts the claims of a class: Kubernetes counts them under the class and under its
// extended resource.
func limits(hard sets.Set[corev1.ResourceName], class resourceapi.DeviceClass) bool {
	if hard.Has(QuotaEntry(class.Name)) {
		return true
	}
	name := class.Spec.ExtendedResourceName
	return name != nil && *name != "" && hard.Has(corev1.ResourceName(corev1.DefaultResourceRequestsPrefix+*name))
}

// quotas warns of ResourceQuotas with holes.
func (d Diagnosis) quotas(out *findings) {
	budgeted := sets.New[string]()
	for _, b := range d.Budgets {
		budgeted.Insert(b.Namespace)
	}
	for _, h := range QuotaHoles(d.Quotas, QuotaClasses(d.Objects, d.Classes), budgeted) {
		const maxClassNames = 3
		open := h.Open
		if len(open) > maxClassNames {
			open = append(slices.Clone(open[:maxClassNames]), "…")
		}
		out.add(Warning, "namespace "+h.Namespace, "its ResourceQuota limits %s, and other classes of the same GPUs "+
			"not (%d): %s. Give it a GPU budget, or add the entries of kubectl gpu quota -n %s --resource-quota",
			strings.Join(h.Limited, ", "), len(h.Open), strings.Join(open, ", "), h.Namespace)
	}
}
