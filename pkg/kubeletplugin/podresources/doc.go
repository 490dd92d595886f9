// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package podresources asks the kubelet's pod-resources API two questions: which claims do its pods still refer to
// (Usage, which asks the process table too), and which GPUs do device plugins of the node serve (DevicePlugins).
package podresources
