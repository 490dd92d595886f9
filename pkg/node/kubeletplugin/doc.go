// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeletplugin connects the engine with the kubelet and the API server.
//
// The kubelet calls the engine; results become answers, Events, device status and metrics. The inventory becomes
// ResourceSlices. This package neither decides which devices a claim gets nor stores them.
//
// Traps. Two instances run during an upgrade: the kubelet may call either for any claim, but only the newest publishes.
// The start waits for neither NVML nor the API server, because pods must be able to end without them. A Prepare calls
// the API server only for the helper's look-up of the claim; it writes Events and status afterwards.
package kubeletplugin
