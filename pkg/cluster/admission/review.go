// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	draapiv1beta1 "k8s.io/dynamic-resource-allocation/api/v1beta1"
	draapiv1beta2 "k8s.io/dynamic-resource-allocation/api/v1beta2"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// Options says what a review denies.
type Options struct {
	// Binding denies objects with errors. If false, errors become warnings: the objects can belong to other drivers,
	// and this driver must not block them.
	Binding bool
	// DenyUnsatisfiable denies claims and templates that no node could satisfy, even an empty one. If false, they get a
	// warning.
	DenyUnsatisfiable bool
	// judgedBy ends a text that says what the allocator answers.
	judgedBy string
}

// CutShort is the warning of a review that reached its time limit. Such a review allows objects that it would deny.
const CutShort = "the review was cut short by its time limit: it is unknown whether devices of the cluster satisfy " +
	"the selectors, or whether a selector fails on one"

// Review answers a request.
func Review(
	ctx context.Context, v *ClusterView, request *admissionv1.AdmissionRequest, o Options,
) *admissionv1.AdmissionResponse {
	if request == nil {
		return refuse("", o.Binding, "the AdmissionReview holds no request")
	}
	o.judgedBy = fmt.Sprintf(" (judged by %s)", schedulerfault.JudgedBy(v.Server))
	found, err := v.review(ctx, request, o)
	if err != nil {
		return refuse(request.UID, o.Binding, err.Error())
	}
	denied := found.Unsatisfiable
	for _, e := range found.Errors {
		if o.Binding {
			denied = append(denied, e)
		} else {
			found.warn("%v", e)
		}
	}
	if found.cut {
		found.Warnings = append(found.Warnings, CutShort)
	}
	response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true, Warnings: found.Warnings}
	if len(denied) > 0 {
		kind := schema.GroupKind{Group: request.Kind.Group, Kind: request.Kind.Kind}
		status := apierrors.NewInvalid(kind, request.Name, denied).Status()
		response.Allowed, response.Result = false, &status
		response.Result.Message = denied.ToAggregate().Error()
		// kubectl prints only the causes of an invalid object, and not the message, in which the API server names the
		// webhook.
		response.Result.Details.Causes = slices.Insert(response.Result.Details.Causes, 0, metav1.StatusCause{
			Type: metav1.CauseTypeForbidden, Field: v.driver,
			Message: "the webhook of the GPU driver refuses the object",
		})
	}
	return response
}

func refuse(uid types.UID, binding bool, why string) *admissionv1.AdmissionResponse {
	r := &admissionv1.AdmissionResponse{UID: uid, Allowed: !binding}
	if binding {
		r.Result = &metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    http.StatusBadRequest,
			Reason:  metav1.StatusReasonBadRequest,
			Message: why,
		}
	}
	return r
}

func (v *ClusterView) review(ctx context.Context, request *admissionv1.AdmissionRequest, o Options) (result, error) {
	if request.Operation != admissionv1.Create && request.Operation != admissionv1.Update {
		return result{}, nil
	}
	switch request.Resource.Resource {
	case "resourceclaims":
		if request.Operation == admissionv1.Update || request.SubResource != "" {
			return result{}, nil // Specs do not change, and a deletion must not be blocked.
		}
		if longAmounts(request.Object.Raw) {
			return result{Errors: field.ErrorList{field.Forbidden(field.NewPath("spec", "devices"), tooLargeText)}}, nil
		}
		var claim resourceapi.ResourceClaim
		if err := read(request.Object, request.Resource.Version, "ResourceClaim", &claim); err != nil {
			return result{}, err
		}
		return v.reviewClaim(ctx, claim.Spec, field.NewPath("spec"), o), nil
	case "resourceclaimtemplates":
		if request.Operation == admissionv1.Update {
			return result{}, nil
		}
		if longAmounts(request.Object.Raw) {
			return result{Errors: field.ErrorList{field.Forbidden(field.NewPath("spec", "spec", "devices"),
				tooLargeText)}}, nil
		}
		var template resourceapi.ResourceClaimTemplate
		if err := read(request.Object, request.Resource.Version, "ResourceClaimTemplate", &template); err != nil {
			return result{}, err
		}
		return v.reviewClaim(ctx, template.Spec.Spec, field.NewPath("spec", "spec"), o), nil
	case "deviceclasses":
		var class, old resourceapi.DeviceClass
		if err := read(request.Object, request.Resource.Version, "DeviceClass", &class); err != nil {
			return result{}, err
		}
		if request.Operation == admissionv1.Update && len(request.OldObject.Raw) > 0 {
			if err := read(request.OldObject, request.Resource.Version, "DeviceClass", &old); err == nil &&
				equality.Semantic.DeepEqual(class.Spec, old.Spec) {
				return result{}, nil
			}
		}
		return v.reviewClass(ctx, &class), nil
	}
	return result{}, nil
}

// ReadClaim returns the claim of a request that creates a claim, or a claim with the spec of a template.
func ReadClaim(request *admissionv1.AdmissionRequest) (*resourceapi.ResourceClaim, error) {
	if longAmounts(request.Object.Raw) {
		return nil, errors.New("spec.devices: " + tooLargeText)
	}
	if request.Resource.Resource == "resourceclaimtemplates" {
		var template resourceapi.ResourceClaimTemplate
		if err := read(request.Object, request.Resource.Version, "ResourceClaimTemplate", &template); err != nil {
			return nil, err
		}
		return &resourceapi.ResourceClaim{ObjectMeta: template.ObjectMeta, Spec: template.Spec.Spec}, nil
	}
	var claim resourceapi.ResourceClaim
	if err := read(request.Object, request.Resource.Version, "ResourceClaim", &claim); err != nil {
		return nil, err
	}
	return &claim, nil
}

type amounts struct {
	Capacity struct {
		Requests map[string]v1beta1.Quantity `json:"requests"`
	} `json:"capacity"`
}

type devices struct {
	Requests []struct {
		amounts                  // v1beta1
		Exactly        amounts   `json:"exactly"`
		FirstAvailable []amounts `json:"firstAvailable"`
	} `json:"requests"`
}

// longAmounts reports whether a claim or template of any API version has an amount that takes long to parse. An API
// server would take as long before it asks for a review, but any program can post one.
func longAmounts(raw []byte) bool {
	var object struct {
		Spec struct {
			Devices devices `json:"devices"`
			Spec    struct {
				Devices devices `json:"devices"`
			} `json:"spec"`
		} `json:"spec"`
	}
	return errors.Is(json.Unmarshal(raw, &object), v1beta1.ErrExponent) // Other errors are faults of the object itself.
}

// versions knows all versions of the API and their conversions to v1.
var versions = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{resourceapi.AddToScheme, draapiv1beta1.AddToScheme,
		draapiv1beta2.AddToScheme} {
		utilruntime.Must(add(scheme))
	}
	return scheme
})

// read decodes an object of any API version. The API server has already refused or dropped unknown fields.
func read(raw runtime.RawExtension, version, kind string, into runtime.Object) error {
	object := into
	if version != resourceapi.SchemeGroupVersion.Version {
		var err error
		if object, err = versions().New(schema.GroupVersionKind{Group: resourceapi.GroupName, Version: version,
			Kind: kind}); err != nil {
			return fmt.Errorf("objects of version %q are unknown", version)
		}
	}
	if err := json.Unmarshal(raw.Raw, object); err != nil {
		return fmt.Errorf("the object cannot be read as %s: %w", version, err)
	}
	if object == into {
		return nil
	}
	return versions().Convert(object, into, nil)
}
