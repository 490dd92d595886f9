// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"context"
	"fmt"
	"sync"
	"time"

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
func TaintRules(
	ctx context.Context, client dynamic.Interface,
) (rules []resourceapi.DeviceTaintRule, version string, err error) {
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

// freshFor is the time for which Rules answers without a request.
const freshFor = 20 * time.Second

// Rules reads DeviceTaintRules, and answers with the last ones for a moment. It is safe for concurrent use.
type Rules struct {
	client dynamic.Interface

	mu   sync.Mutex
	last []*resourceapi.DeviceTaintRule
	err  error
	at   time.Time
}

// NewRules returns Rules, which makes no request yet.
func NewRules(client dynamic.Interface) *Rules { return &Rules{client: client} }

// All returns the rules. Those that are known are right also with an error. Errors are kept for a moment too, because a
// missing right would cost a request for each answer.
func (r *Rules) All(ctx context.Context) ([]*resourceapi.DeviceTaintRule, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at.IsZero() || time.Since(r.at) >= freshFor {
		all, _, err := TaintRules(ctx, r.client)
		r.last, r.err, r.at = nil, err, time.Now()
		for i := range all {
			r.last = append(r.last, &all[i])
		}
	}
	return r.last, r.err
}
