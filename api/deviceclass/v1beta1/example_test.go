// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1_test

import (
	"fmt"

	"gpu-dra-driver/api/deviceclass/v1beta1"
)

// ExampleDecode shows that Decode sets defaults, and names the field of a mistake.
func ExampleDecode() {
	config, err := v1beta1.Decode([]byte(`{
		"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
		"sharing": {"strategy": "TimeSlicing"}
	}`))
	fmt.Println(config.Sharing.Strategy, config.Sharing.TimeSlicing.Interval, err)

	_, err = v1beta1.Decode([]byte(`{
		"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
		"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 120}}
	}`))
	fmt.Println(err)
	// Output:
	// TimeSlicing Default <nil>
	// GpuConfig: sharing.mpsConfig.defaultActiveThreadPercentage: 120 is not a percentage, use 0 to 100
}
