// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// RuleVersions are the API versions of DeviceTaintRules, newest first. Their objects are equal.
var RuleVersions = []string{"v1", "v1beta2", "v1alpha3"}

// RuleResource returns the resource of DeviceTaintRules in a version.
func RuleResource(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "resource.k8s.io", Version: version, Resource: "devicetaintrules"}
}

// TaintRules lists DeviceTaintRules in the newest version that the server has, and returns this version. A server
// without any version has no rules; the version is empty then. A rule that cannot be decoded is left out, and is an
// error, because its taints are unknown.
func TaintRules(ctx context.Context, client dynamic.Interface) (rules []resourceapi.DeviceTaintRule, version string, err error) {
	for _, version := range RuleVersions {
		list, err := client.Resource(RuleResource(version)).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		for _, item := range list.Items {
			var rule resourceapi.DeviceTaintRule
			if failed := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &rule); failed != nil {
				err = fmt.Errorf("decode DeviceTaintRule %s: %w", item.GetName(), failed)
				continue
			}
			rules = append(rules, rule)
		}
		return rules, version, err
	}
	return nil, "", nil
}
