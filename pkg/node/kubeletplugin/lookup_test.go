// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"
	"net/http"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
)

func TestLookup_Errors_OnlyNotFoundMeansGone(t *testing.T) {
	resource := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}
	nameless := plan.Claim{UID: "one"}
	one := plan.Claim{Namespace: "ns", Name: "claim-one", UID: "one"}
	for name, tc := range map[string]struct {
		claim       plan.Claim
		fail        error
		found, gone bool
	}{
		"there":                            {claim: one, found: true},
		"there, found by UID":              {claim: nameless, found: true},
		"another claim has its name":       {claim: plan.Claim{Namespace: "ns", Name: "claim-one", UID: "older"}, gone: true},
		"no such name":                     {claim: plan.Claim{Namespace: "ns", Name: "claim-two", UID: "x"}, gone: true},
		"no such UID":                      {claim: plan.Claim{UID: "x"}, gone: true},
		"the server says not found":        {claim: one, fail: apierrors.NewNotFound(resource, "one"), gone: true},
		"a proxy says 404":                 {claim: one, fail: apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource, "one", "404 page not found", 0, true)},
		"the server is away":               {claim: one, fail: apierrors.NewServiceUnavailable("away")},
		"the server is away, by UID":       {claim: nameless, fail: apierrors.NewServiceUnavailable("away")},
		"the role does not allow it":       {claim: one, fail: apierrors.NewForbidden(resource, "one", errors.New("no"))},
		"the server says 404, by UID":      {claim: nameless, fail: apierrors.NewNotFound(resource, "")},
		"the connection could not be made": {claim: one, fail: errors.New("connection refused")},
	} {
		t.Run(name, func(t *testing.T) {
			e := env.New(t, env.Claim("one", "", ""), env.Claim("other", "", ""))
			if tc.fail != nil {
				e.Client.PrependReactor("*", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tc.fail })
			}
			c, err := lookup{e.Client.ResourceV1()}.Get(t.Context(), tc.claim)
			if (err == nil) != tc.found || errors.Is(err, devicestate.ErrNoClaim) != tc.gone {
				t.Errorf("claim %v, error %v", c, err)
			}
			if tc.found && string(c.UID) != tc.claim.UID {
				t.Errorf("found UID %s", c.UID)
			}
		})
	}
}

func TestGetCached_Claim_AllowsServersCache(t *testing.T) {
	for want, get := range map[string]func(lookup) (*resourceapi.ResourceClaim, error){
		"0": func(l lookup) (*resourceapi.ResourceClaim, error) {
			return l.GetCached(t.Context(), plan.Claim{Namespace: "ns", Name: "claim-one", UID: "one"})
		},
		"": func(l lookup) (*resourceapi.ResourceClaim, error) {
			return l.Get(t.Context(), plan.Claim{Namespace: "ns", Name: "claim-one", UID: "one"})
		},
	} {
		e := env.New(t, env.Claim("one", "", ""))
		asked := "none"
		e.Client.PrependReactor("get", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if get, ok := a.(clienttesting.GetActionImpl); ok {
				asked = get.GetOptions.ResourceVersion
			}
			return false, nil, nil
		})
		if _, err := get(lookup{e.Client.ResourceV1()}); err != nil || asked != want {
			t.Errorf("%v, asked for resourceVersion %q, want %q", err, asked, want)
		}
	}
}

func TestLookup_ByUID_ReadsEveryPage(t *testing.T) {
	e := env.New(t)
	pages := 0
	e.Client.PrependReactor("list", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		pages++
		list := &resourceapi.ResourceClaimList{Items: []resourceapi.ResourceClaim{*env.Claim("other", "", "")}}
		if pages < 3 {
			list.ListMeta = metav1.ListMeta{Continue: "more"}
		} else {
			list.Items = append(list.Items, *env.Claim("one", "", ""))
		}
		return true, list, nil
	})
	c, err := lookup{e.Client.ResourceV1()}.Get(t.Context(), plan.Claim{UID: "one"})
	if err != nil || c.Name != "claim-one" || pages != 3 {
		t.Errorf("claim %v, error %v, after %d pages", c, err, pages)
	}
}
