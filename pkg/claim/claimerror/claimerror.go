// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package claimerror explains why the driver could not do what a claim asks for.
//
// The reader is the person who must act: the text holds the attempt, the device, the claim, the cause and the remedy.
// Events and metrics use the reason, which also decides whether a retry can help.
package claimerror

import (
	"errors"
	"strings"
)

// Kind says whether a retry can help.
type Kind string

const (
	// Permanent errors stay until the claim or its class is changed.
	Permanent Kind = "permanent"
	// Transient errors can end without a change of the claim; the kubelet retries.
	Transient Kind = "transient"
)

// Reason is a CamelCase word for Events and metrics. docs/reference/events.md is generated from the comments below: the
// meaning up to the first full stop, then the remedy.
type Reason string

const (
	// InvalidParameters: parameters of the claim, its class or the node's settings are wrong. Correct the field that
	// the message names, then create the claim again; delete the pod if its claim comes from a template.
	InvalidParameters Reason = "InvalidParameters"
	// InvalidAllocation: the claim has no allocation, or one that a single claim cannot have. Follow the message, then
	// delete the pod and its claim.
	InvalidAllocation Reason = "InvalidAllocation"
	// UnknownDevice: the node does not have the allocated device now. Bring the GPU back, or delete the pod and its
	// claim.
	UnknownDevice Reason = "UnknownDevice"
	// DeviceInUse: another claim, a device plugin or a process uses the device. Wait for it, or end the user that the
	// message names.
	DeviceInUse Reason = "DeviceInUse"
	// DeviceLost: the GPU does not answer. Reset the GPU or reboot the node; delete the pod to run it elsewhere.
	DeviceLost Reason = "DeviceLost"
	// DeviceNotReady: the GPU answers, but its state does not allow this. Follow the message; read NVRM messages in the
	// node's kernel log.
	DeviceNotReady Reason = "DeviceNotReady"
	// DeviceUnhealthy: the driver reports a fault of the GPU of a prepared claim. Delete the pod to run it on another
	// GPU; the message says how the GPU works again.
	DeviceUnhealthy Reason = "DeviceUnhealthy"
	// DeviceDegraded: the GPU works, but its memory, clocks or PCIe link need attention, or its faults cannot be seen.
	// Follow the message; pods need not be moved.
	DeviceDegraded Reason = "DeviceDegraded"
	// XIDError: the driver reports an error (XID) of the GPU of a prepared claim. The message says whether a program or
	// the GPU has the fault; docs/reference/health.md lists the XIDs.
	XIDError Reason = "XIDError"
	// DriverNotReady: NVIDIA's driver does not answer on the node. Check that nvidia-smi works there; pods start by
	// themselves then.
	DriverNotReady Reason = "DriverNotReady"
	// HostFailure: a file operation or the driver root of the node failed. Check the node's disk and the plugin's log.
	HostFailure Reason = "HostFailure"
	// KubeletUnreachable: the kubelet does not say which GPUs device plugins serve. Check the path of the socket in the
	// message, which follows the chart value `kubeletPlugin.kubeletPodResourcesDirectoryPath`.
	KubeletUnreachable Reason = "KubeletUnreachable"
	// RecordUnreadable: the record of a prepared claim is damaged. Check the node's disk; the message says whether the
	// claim still blocks GPUs.
	RecordUnreadable Reason = "RecordUnreadable"
	// Interrupted: the kubelet stopped waiting for the operation. It is retried; if it persists, read the plugin's log.
	Interrupted Reason = "Interrupted"
	// MPSDaemonDied: processes that share a device by MPS lost it, because its daemon ended or one of them failed. The
	// supervisor restarts the daemon if needed. Restart the processes on the device.
	MPSDaemonDied Reason = "MPSDaemonDied"
	// NVLinkDown: NVLink no longer connects the GPUs of a claim's group. Run `nvidia-smi nvlink --status` on the node;
	// delete the pod to run it elsewhere.
	NVLinkDown Reason = "NVLinkDown"
	// SchedulerFault: the scheduler of this version of Kubernetes, or of an unknown one, allocates devices wrongly. The
	// message says which devices the node leaves out therefore; upgrade Kubernetes, or name the scheduler's version by
	// `--scheduler-version`.
	SchedulerFault Reason = "SchedulerFault"
	// PublishRefused: the API server, an admission policy or a quota refuses ResourceSlices of the node. Correct the
	// policy or quota that the message names; devices keep the last form that was accepted, and other devices of the
	// node are published.
	PublishRefused Reason = "PublishRefused"
	// InternalFault: the driver has a bug, and continues. Report the stack from the plugin's log.
	InternalFault Reason = "InternalFault"
)

// Error is a refusal or failure. Attempt and Cause are required; the text leaves out empty fields.
type Error struct {
	Reason Reason
	// Attempt is the operation, such as "prepare".
	Attempt string
	// Claim is namespace/name, UID the claim's, and Device the device's name. Another claim can get the name later.
	Claim, UID, Device string
	Cause              error
	// Remedy is the reader's next step, without a period at the end. Error writes its first letter in upper case.
	Remedy string
}

func (e *Error) Error() string { return e.text(e.Claim) }

func (e *Error) text(claim string) string {
	text, cause := e.Attempt+" failed", string(e.Reason)
	switch {
	case e.Device != "" && claim != "":
		text += " for " + e.Device + " of claim " + claim
	case e.Device != "":
		text += " for " + e.Device
	case claim != "":
		text += " for claim " + claim
	}
	if e.Cause != nil {
		cause = e.Cause.Error()
	}
	if e.Remedy != "" {
		cause += ". " + strings.ToUpper(e.Remedy[:1]) + e.Remedy[1:]
	}
	return text + ": " + cause
}

func (e *Error) Unwrap() error { return e.Cause }

// TextOnClaim returns err's text without the name of the claim, for an Event on it.
func TextOnClaim(err error) string {
	switch e := any(err).(type) { // errors.As would drop the text of a wrapping error.
	case *Error:
		return e.text("")
	case interface{ Unwrap() []error }:
		var texts []string
		for _, one := range e.Unwrap() {
			texts = append(texts, TextOnClaim(one))
		}
		return strings.Join(texts, "\n")
	}
	return err.Error()
}

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
