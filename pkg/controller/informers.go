// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

var nodeResource = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

// informer watches objects of whatever version of the API there is, without what nobody here reads.
func informer[L runtime.Object](
	client any, list func(context.Context, metav1.ListOptions) (L, error), watcher func(context.Context, metav1.ListOptions) (watch.Interface, error),
	of runtime.Object, trim cache.TransformFunc,
) cache.SharedIndexInformer {
	lw := &cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) },
		WatchFuncWithContext: watcher,
	}
	out := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, client), of, 0, cache.Indexers{})
	_ = out.SetTransform(trim) // It has not started.
	return out
}

func trimClass(object any) (any, error) {
	if class, ok := object.(*resourceapi.DeviceClass); ok {
		class.ManagedFields = nil
	}
	return object, nil
}

// trimClaim keeps which classes a claim names and what it has.
func trimClaim(object any) (any, error) {
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok {
		return object, nil
	}
	claim.ManagedFields, claim.Labels, claim.Annotations, claim.OwnerReferences = nil, nil, nil, nil
	claim.Spec.Devices.Config, claim.Spec.Devices.Constraints = nil, nil
	claim.Status.Devices = nil
	for i := range claim.Spec.Devices.Requests {
		if e := claim.Spec.Devices.Requests[i].Exactly; e != nil {
			e.Selectors, e.Tolerations = nil, nil
		}
	}
	if a := claim.Status.Allocation; a != nil {
		a.Devices.Config, a.NodeSelector = nil, nil
	}
	return claim, nil
}
