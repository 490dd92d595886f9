// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/pkg/cluster/why"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// TestAsk_AnyServerVersion_SaysByWhichItJudged asks with servers with and without known faults.
func TestAsk_AnyServerVersion_SaysByWhichItJudged(t *testing.T) {
	allocator := "the allocator of Kubernetes " + schedulerfault.Allocator.String()
	for name, c := range map[string]struct {
		version string
		err     error
		by      string
		notes   []string
	}{
		"no server":       {by: allocator},
		"no known fault":  {version: "v1.37.2", by: allocator + ", for an API server of 1.37.2"},
		"vendor":          {version: "v1.36.4-eks-1", by: allocator + ", for an API server of 1.36.4"},
		"faults":          {version: "v1.36.1", by: allocator + ", for an API server of 1.36.1", notes: []string{"crashes the scheduler", "ignores the counters", "keeps reservations"}},
		"one fault":       {version: "v1.36.2", by: allocator + ", for an API server of 1.36.2", notes: []string{"keeps reservations"}},
		"no such version": {version: "master", by: allocator, notes: []string{"not a version of Kubernetes"}},
		"unread":          {err: errors.New("no answer"), by: allocator, notes: []string{"could not be read (no answer)"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.node(t, "n1", "hgx-h100", 2)
			cluster := e.Cluster
			cluster.Slices = packed(t, e.Slices)
			cluster.ServerVersion, cluster.ServerVersionError = c.version, c.err
			a := why.Ask(t.Context(), &cluster, why.Subject{Claim: claim("a", gpus, 1)}, why.Options{Now: time.Now(), Limit: 30 * time.Second})
			if a.Result != why.Fits || a.JudgedBy != c.by || len(a.Notes) != len(c.notes) {
				t.Errorf("%s, %q, notes %q", a.Result, a.JudgedBy, a.Notes)
			}
			for i := range min(len(c.notes), len(a.Notes)) {
				if !strings.Contains(a.Notes[i], c.notes[i]) {
					t.Errorf("note %q lacks %q", a.Notes[i], c.notes[i])
				}
			}
			if text := a.String(); !strings.Contains(text, "\nJudged by "+c.by+".\n") {
				t.Errorf("the text does not say by what it is judged: %s", text)
			}
		})
	}
}
