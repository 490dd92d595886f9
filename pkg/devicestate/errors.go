// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/plan"
)

// refuse explains why a claim cannot be prepared. The device is empty where it concerns none.
func refuse(p plan.Plan, device string, reason claimerror.Reason, cause error, remedy string) error {
	return &claimerror.Error{
		Reason: reason, Attempt: "prepare", Claim: p.Claim.String(), Device: device, Cause: cause, Remedy: remedy,
	}
}

func inUse(p plan.Plan, device string, cause error) error {
	return refuse(p, device, claimerror.DeviceInUse, cause,
		"it is retried and succeeds once the other claim is released; delete that claim's pod if it should not be there")
}

func notReady(p plan.Plan, device string, cause error) error {
	return refuse(p, device, claimerror.DriverNotReady, cause,
		"it is retried; check the driver installation on the node (nvidia-smi must work there)")
}

// failure explains an error of the disk or the driver root, or that the caller's deadline passed. An error that is
// explained already is returned as it is.
func failure(ctx context.Context, attempt string, claim plan.Claim, cause error) error {
	var explained *claimerror.Error
	if cause == nil || errors.As(cause, &explained) {
		return cause
	}
	f := &claimerror.Error{
		Reason: claimerror.HostFailure, Attempt: attempt, Claim: claimText(claim), Cause: cause,
		Remedy: "it is retried; if it persists, look at the node's disk and at the log of its kubelet plugin",
	}
	if ctx.Err() != nil {
		f.Reason = claimerror.Interrupted
		f.Remedy = "it is retried; another claim's work on the same GPU or claim took longer than the kubelet waits"
	}
	return f
}

func claimText(c plan.Claim) string {
	if c.Name == "" {
		return "UID " + c.UID
	}
	return c.String()
}
