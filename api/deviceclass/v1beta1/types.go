// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

// GroupVersion is the apiVersion of every parameter kind.
const GroupVersion = "resource.nvidia.com/v1beta1"

// The kinds.
const (
	KindGPUConfig = "GpuConfig"
)

// GPUConfig holds the parameters of a whole GPU. It has no settings: giving one says that the defaults are meant.
type GPUConfig struct{}

// Config is a decoded parameter object; exactly one member is set.
type Config struct {
	GPU *GPUConfig
}
