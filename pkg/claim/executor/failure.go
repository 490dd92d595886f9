// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
)

// Busy is an error with an external cause: a process or an administrator holds or changed the GPU.
type Busy struct {
	Obstacle, Remedy string
	// Cause is the error of the failed call, if any.
	Cause error
}

func (e *Busy) Error() string {
	if e.Cause == nil {
		return e.Obstacle
	}
	return e.Cause.Error() + ": " + e.Obstacle
}

func (e *Busy) Unwrap() error { return e.Cause }

// Failure returns err as a *claimerror.Error. The remedy is for errors without one of their own.
func Failure(ctx context.Context, attempt string, d plan.Device, err error, remedy string) error {
	var explained *claimerror.Error
	if err == nil || errors.As(err, &explained) {
		return err
	}
	e := &claimerror.Error{
		Reason: claimerror.DeviceNotReady, Attempt: attempt, Device: d.Name, Cause: err, Remedy: remedy,
	}
	var busy *Busy
	switch {
	case errors.Is(err, host.ErrPanic):
		e.Reason = claimerror.InternalFault
	case ctx.Err() != nil:
		e.Reason = claimerror.Interrupted
	case errors.Is(err, nvml.DriverNotLoaded), errors.Is(err, nvml.LibraryNotFound):
		e.Reason, e.Remedy = claimerror.DriverNotReady,
			"the operation is retried; load the driver on the node (nvidia-smi must work there)"
	case sessionpool.IsGone(err):
		e.Reason = claimerror.DeviceLost
		e.Remedy = "reset the GPU or reboot the node, or delete the pod so that it is scheduled elsewhere"
	case errors.As(err, &busy):
		e.Reason, e.Remedy = claimerror.DeviceInUse, busy.Remedy
	case diskFull(err):
		e.Reason, e.Remedy = claimerror.HostFailure, "make room on the node's disk; the operation is retried"
	}
	return e
}

// diskFull also finds errors of the supervisor of MPS daemons, which arrive as text.
func diskFull(err error) bool {
	return strings.Contains(err.Error(), syscall.ENOSPC.Error()) ||
		strings.Contains(err.Error(), syscall.EDQUOT.Error())
}

// CoTenants returns the co-tenants on the step's device. It returns an error while one of them is being prepared or
// unprepared, because some of its effects may be missing.
func CoTenants(w plan.Work) ([]plan.CoTenant, error) {
	tenants := w.CoTenants()
	for _, t := range tenants {
		if !t.Committed {
			return nil, &claimerror.Error{
				Reason: claimerror.DeviceInUse, Attempt: "prepare", Device: w.Target().Name,
				Cause:  fmt.Errorf("claim %s, which shares the device, is being prepared or unprepared", t.Claim),
				Remedy: "the operation is retried; if it persists, see the plugin's log for that claim",
			}
		}
	}
	return tenants, nil
}

// ProcessName returns the PID and, if /proc shows it, the command of a process.
func ProcessName(h *host.Host, procRoot string, pid uint32) string {
	name := fmt.Sprintf("process %d", pid)
	if comm, err := h.ReadFile(filepath.Join(procRoot, fmt.Sprint(pid), "comm")); err == nil {
		name += " (" + strings.TrimSpace(string(comm)) + ")"
	}
	return name
}
