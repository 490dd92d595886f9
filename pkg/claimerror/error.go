// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package claimerror explains why the driver could not do what a claim asks for.
//
// The reader is the person who must act: the text holds the attempt, the device, the claim, the cause and the remedy.
// Events and metrics use the reason, which also decides whether a retry can help.
package claimerror

import "errors"

// Kind says whether a retry can help.
type Kind string

const (
	// Permanent errors stay until the claim or its class is changed.
	Permanent Kind = "permanent"
	// Transient errors can end without a change of the claim; the kubelet retries.
	Transient Kind = "transient"
)

// Reason is a CamelCase word for Events and metrics.
type Reason string

const (
	InvalidParameters Reason = "InvalidParameters"
	InvalidAllocation Reason = "InvalidAllocation"
	UnknownDevice     Reason = "UnknownDevice"
	DeviceInUse       Reason = "DeviceInUse"
	DeviceLost        Reason = "DeviceLost"
	DeviceNotReady    Reason = "DeviceNotReady"
	DriverNotReady    Reason = "DriverNotReady"
	HostFailure       Reason = "HostFailure"
	RecordUnreadable  Reason = "RecordUnreadable"
	Interrupted       Reason = "Interrupted"
	MPSDaemonDied     Reason = "MPSDaemonDied"
	NVLinkDown        Reason = "NVLinkDown"
	// InternalFault is a bug of the driver.
	InternalFault Reason = "InternalFault"
)

// Error is a refusal or failure. Attempt and Cause are required; the text leaves out empty fields.
type Error struct {
	Reason Reason
	// Attempt is the operation, such as "prepare".
	Attempt string
	// Claim is namespace/name, Device the device's name.
	Claim, Device string
	Cause         error
	// Remedy is the reader's next step.
	Remedy string
}

func (e *Error) Error() string {
	text, cause := e.Attempt, string(e.Reason)
	if e.Device != "" {
		text += " of " + e.Device
	}
	if e.Claim != "" {
		text += " for claim " + e.Claim
	}
	if e.Cause != nil {
		cause = e.Cause.Error()
	}
	if e.Remedy != "" {
		cause += "; " + e.Remedy
	}
	return text + ": " + cause
}

func (e *Error) Unwrap() error { return e.Cause }

// KindOf derives the kind from the reason. Errors that can be of either kind are transient, because a retry is safe.
func KindOf(err error) Kind {
	if r := ReasonOf(err); r == InvalidParameters || r == InvalidAllocation {
		return Permanent
	}
	return Transient
}

// ReasonOf returns the reason of the first Error in err's chain, or HostFailure without one.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return HostFailure
}
