// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package claimerror is how the driver says that it could not do what a claim asks for.
//
// The reader is the person who must act: the text says what was attempted, on which device, for which claim, why it
// failed and what to do now. The reason is for Events and metrics; whether trying again can help follows from it.
package claimerror

import "errors"

// Kind says who can help.
type Kind string

const (
	// Permanent errors stay until the claim or its class is changed.
	Permanent Kind = "permanent"
	// Transient errors can clear by themselves or by the node's repair; the kubelet tries again.
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

// Error is a refusal or failure. Attempt and Cause are needed; what is empty is left out of the text.
type Error struct {
	Reason Reason
	// Attempt is what was tried: "prepare".
	Attempt string
	// Claim is namespace/name, Device the device's name.
	Claim, Device string
	Cause         error
	// Remedy is what the reader can do now.
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

// KindOf follows from the reason of err. Errors that may be of either kind count as transient: it is safer to try again.
func KindOf(err error) Kind {
	if r := ReasonOf(err); r == InvalidParameters || r == InvalidAllocation {
		return Permanent
	}
	return Transient
}

// ReasonOf is the reason of the first Error in err's chain, HostFailure where there is none.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return HostFailure
}
