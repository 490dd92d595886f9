// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/api/resource/v1beta1"
	"k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	draapiv1beta1 "k8s.io/dynamic-resource-allocation/api/v1beta1"
	draapiv1beta2 "k8s.io/dynamic-resource-allocation/api/v1beta2"
)

// Review answers a request. A binding review denies; one that is not only warns: its objects are other drivers' as far as
// the API server can see, and nothing may hold them up.
func Review(ctx context.Context, v *ClusterView, request *admissionv1.AdmissionRequest, binding bool) *admissionv1.AdmissionResponse {
	if request == nil {
		return refuse("", binding, http.StatusBadRequest, "the AdmissionReview holds no request")
	}
	found, err := v.review(ctx, request)
	if err != nil {
		return refuse(request.UID, binding, http.StatusBadRequest, err.Error())
	}
	response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true, Warnings: found.Warnings}
	switch {
	case len(found.Errors) == 0:
	case binding:
		kind := schema.GroupKind{Group: request.Kind.Group, Kind: request.Kind.Kind}
		status := apierrors.NewInvalid(kind, request.Name, found.Errors).Status()
		response.Allowed, response.Result = false, &status
		response.Result.Message = found.Errors.ToAggregate().Error()
	default:
		for _, e := range found.Errors {
			found.warn("%v", e)
		}
		response.Warnings = found.Warnings
	}
	return response
}

func refuse(uid types.UID, binding bool, code int32, why string) *admissionv1.AdmissionResponse {
	r := &admissionv1.AdmissionResponse{UID: uid, Allowed: !binding}
	if binding {
		r.Result = &metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: metav1.StatusReasonBadRequest, Message: why}
	}
	return r
}

func (v *ClusterView) review(ctx context.Context, request *admissionv1.AdmissionRequest) (Result, error) {
	if request.Operation != admissionv1.Create && request.Operation != admissionv1.Update {
		return Result{}, nil
	}
	switch request.Resource.Resource {
	case "resourceclaims":
		if request.Operation == admissionv1.Update || request.SubResource != "" {
			return Result{}, nil // Specs do not change, and an end of a claim is never held up.
		}
		var claim resourceapi.ResourceClaim
		if err := read(request.Object, request.Resource.Version, &claim); err != nil {
			return Result{}, err
		}
		return v.Claim(ctx, claim.Spec, field.NewPath("spec")), nil
	case "resourceclaimtemplates":
		if request.Operation == admissionv1.Update {
			return Result{}, nil
		}
		var template resourceapi.ResourceClaimTemplate
		if err := read(request.Object, request.Resource.Version, &template); err != nil {
			return Result{}, err
		}
		return v.Claim(ctx, template.Spec.Spec, field.NewPath("spec", "spec")), nil
	case "deviceclasses":
		var class, old resourceapi.DeviceClass
		if err := read(request.Object, request.Resource.Version, &class); err != nil {
			return Result{}, err
		}
		if request.Operation == admissionv1.Update && len(request.OldObject.Raw) > 0 {
			if err := read(request.OldObject, request.Resource.Version, &old); err == nil && equality.Semantic.DeepEqual(class.Spec, old.Spec) {
				return Result{}, nil
			}
		}
		return v.Class(ctx, &class), nil
	}
	return Result{}, nil
}

// read decodes an object of any version of the API. What is unknown in it the API server has refused or dropped.
func read(raw runtime.RawExtension, version string, into any) error {
	decode := func(into any) error {
		if err := json.Unmarshal(raw.Raw, into); err != nil {
			return fmt.Errorf("the object cannot be read as %s: %w", version, err)
		}
		return nil
	}
	switch version {
	case "v1":
		return decode(into)
	case "v1beta2":
		switch out := into.(type) {
		case *resourceapi.ResourceClaim:
			return converted(decode, draapiv1beta2.Convert_v1beta2_ResourceClaim_To_v1_ResourceClaim, out, &v1beta2.ResourceClaim{})
		case *resourceapi.ResourceClaimTemplate:
			return converted(decode, draapiv1beta2.Convert_v1beta2_ResourceClaimTemplate_To_v1_ResourceClaimTemplate, out, &v1beta2.ResourceClaimTemplate{})
		case *resourceapi.DeviceClass:
			return converted(decode, draapiv1beta2.Convert_v1beta2_DeviceClass_To_v1_DeviceClass, out, &v1beta2.DeviceClass{})
		}
	case "v1beta1":
		switch out := into.(type) {
		case *resourceapi.ResourceClaim:
			return converted(decode, draapiv1beta1.Convert_v1beta1_ResourceClaim_To_v1_ResourceClaim, out, &v1beta1.ResourceClaim{})
		case *resourceapi.ResourceClaimTemplate:
			return converted(decode, draapiv1beta1.Convert_v1beta1_ResourceClaimTemplate_To_v1_ResourceClaimTemplate, out, &v1beta1.ResourceClaimTemplate{})
		case *resourceapi.DeviceClass:
			return converted(decode, draapiv1beta1.Convert_v1beta1_DeviceClass_To_v1_DeviceClass, out, &v1beta1.DeviceClass{})
		}
	}
	return fmt.Errorf("objects of the version %q are not known", version)
}

func converted[In, Out any](decode func(any) error, convert func(*In, *Out, conversion.Scope) error, out *Out, in *In) error {
	if err := decode(in); err != nil {
		return err
	}
	return convert(in, out, nil)
}
