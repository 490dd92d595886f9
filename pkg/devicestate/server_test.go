// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/plan"
)

// server is the API server: it knows the world's claims, or is down.
type server struct {
	w    *world
	down error
	gets int
}

func (s *server) Get(_ context.Context, c plan.Claim) (*resourceapi.ResourceClaim, error) {
	s.gets++
	if s.down != nil {
		return nil, s.down
	}
	if claim, ok := s.w.claims[c.UID]; ok {
		return claim, nil
	}
	return nil, devicestate.ErrNoClaim
}
