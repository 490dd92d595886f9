// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"

	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/plan"
)

// lookup finds claims in the API server.
type lookup struct {
	client resourcev1.ResourceClaimsGetter
}

// Get implements devicestate.Claims.
func (l lookup) Get(ctx context.Context, c plan.Claim) (*resourceapi.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if c.Name == "" {
		return l.search(ctx, c)
	}
	claim, err := l.client.ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil {
		if missing(err) {
			err = devicestate.ErrNoClaim
		}
		return nil, fmt.Errorf("claim %s (UID %s): %w", c, c.UID, err)
	}
	if string(claim.UID) != c.UID {
		return nil, fmt.Errorf("claim %s (UID %s), whose name is another claim's now: %w", c, c.UID, devicestate.ErrNoClaim)
	}
	return claim, nil
}

// missing says that the server knows of no such object, as against a path that leads to no API: a proxy or a server on
// its way up says 404 too, and that must not pass for "gone".
func missing(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// search goes through all claims: an unreadable record leaves no more than the UID, and that is rare.
func (l lookup) search(ctx context.Context, c plan.Claim) (*resourceapi.ResourceClaim, error) {
	options := metav1.ListOptions{Limit: 500}
	for {
		list, err := l.client.ResourceClaims(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("search the claim with UID %s: %w", c.UID, err)
		}
		for i := range list.Items {
			if string(list.Items[i].UID) == c.UID {
				return &list.Items[i], nil
			}
		}
		if list.Continue == "" {
			return nil, fmt.Errorf("UID %s: %w", c.UID, devicestate.ErrNoClaim)
		}
		options.Continue = list.Continue
	}
}
