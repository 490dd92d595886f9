// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package podresources asks the kubelet's pod-resources API which claims its pods refer to (Usage, which also reads the
// process table) and which GPUs the node's device plugins serve (DevicePlugins).
package podresources
