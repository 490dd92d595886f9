// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package claimerror

import (
	"errors"
	"fmt"
	"testing"
)

func TestError_Text_NamesAttemptDeviceClaimCauseAndRemedy(t *testing.T) {
	cause := errors.New("it is lost")
	e := &Error{
		Reason: DeviceLost, Attempt: "prepare", Claim: "ns/c", Device: "gpu-0000-1b-00-0", Cause: cause, Remedy: "reset it",
	}
	if want := "prepare failed for gpu-0000-1b-00-0 of claim ns/c: it is lost. Reset it"; e.Error() != want {
		t.Errorf("%q, want %q", e.Error(), want)
	}
	joined := errors.Join(e, &Error{Attempt: "prepare", Claim: "ns/c", Cause: errors.New("a full disk")}, errors.New("undo: it failed"))
	want := "prepare failed for gpu-0000-1b-00-0: it is lost. Reset it\nprepare failed: a full disk\nundo: it failed"
	if got := TextOnClaim(joined); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if want := "prepare failed: DeviceLost"; (&Error{Attempt: "prepare", Reason: DeviceLost}).Error() != want {
		t.Errorf("the text of an error without a cause is not %q", want)
	}
	wrapped := fmt.Errorf("more: %w", e)
	if KindOf(wrapped) != Transient || ReasonOf(wrapped) != DeviceLost || !errors.Is(wrapped, cause) {
		t.Errorf("kind %s, reason %s", KindOf(wrapped), ReasonOf(wrapped))
	}
	if KindOf(cause) != Transient || ReasonOf(cause) != HostFailure {
		t.Error("an error without a kind is not transient")
	}
	if invalid := (&Error{Reason: InvalidParameters}); KindOf(invalid) != Permanent {
		t.Errorf("%s is %s", invalid.Reason, KindOf(invalid))
	}
}
