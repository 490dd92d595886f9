// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeletplugin stands between the kubelet and the API server on one side and the engine on the other.
//
// The kubelet calls, the engine works, and what it says becomes answers, Events, device status and metrics. Inventory
// becomes ResourceSlices. Nothing here decides what a claim gets or remembers what it was given.
//
// Traps. Two instances live at once during an upgrade: either may be called for any claim, only the newest publishes.
// Starting waits for neither NVML nor the API server, since pods must be able to end without them. The path of a
// Prepare holds no call to the API server but the helper's look-up of the claim; the rest is told afterwards.
package kubeletplugin
