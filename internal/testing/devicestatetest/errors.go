// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"context"
	"strings"
	"testing"

	"gpu-dra-driver/pkg/claim/claimerror"
)

// CheckError checks an error's kind, reason and form, and that its text contains the parts.
func CheckError(t testing.TB, err error, kind claimerror.Kind, reason claimerror.Reason, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if claimerror.KindOf(err) != kind || claimerror.ReasonOf(err) != reason {
		t.Errorf("%s %s, want %s %s: %v", claimerror.KindOf(err), claimerror.ReasonOf(err), kind, reason, err)
	}
	for _, s := range append(parts, " failed", ". ") {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q lacks %q", err, s)
		}
	}
}

// CheckRefused checks that Prepare of a claim fails.
func (e *Env) CheckRefused(p *Process, uid string, kind claimerror.Kind, reason claimerror.Reason, parts ...string) {
	e.T.Helper()
	devices, err := p.Prepare(context.Background(), e.Claims[uid])
	CheckError(e.T, err, kind, reason, parts...)
	if devices != nil {
		e.T.Errorf("devices %v beside an error", devices)
	}
}
