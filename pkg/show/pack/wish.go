// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"fmt"
	"regexp"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/gpu"
)

// WishHelp names the forms of a wish.
const WishHelp = "a group of linked GPUs (nvlink-4), so many GPUs of one node (4), a MIG profile (3g.40gb) or memory of one GPU (40Gi)"

var groupWish = regexp.MustCompile(`^nvlink-([0-9]{1,3})$`)

// ParseWish returns the wish for a text. Its class selects the devices of the driver, so that no class of the cluster is needed.
func ParseWish(driver, text string) (Wish, error) {
	selector := func(kind gpu.Kind, more string) string {
		return fmt.Sprintf("device.driver == %q && device.attributes[%q].type == %q", driver, driver, kind) + more
	}
	request := resourceapi.ExactDeviceRequest{
		DeviceClassName: "wish." + driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}
	var expression string
	count, notCount := strconv.ParseInt(text, 10, 64)
	memory, notMemory := resource.ParseQuantity(text)
	switch size := groupWish.FindStringSubmatch(text); {
	case len(size) > 0:
		gpus, _ := strconv.Atoi(size[1]) // The form has digits only.
		expression = selector(gpu.KindGroup, fmt.Sprintf(" && device.attributes[%q].gpuCount == %d", driver, gpus))
		text = fmt.Sprintf("an NVLink group of %d GPUs", gpus)
	case notCount == nil:
		if count < 1 || count > resourceapi.AllocationResultsMaxSize {
			return Wish{}, fmt.Errorf("%q is no wish: ask for 1 to %d GPUs", text, resourceapi.AllocationResultsMaxSize)
		}
		request.Count, expression = count, selector(gpu.KindGPU, "")
		if text = strconv.FormatInt(count, 10) + " GPUs of one node"; count == 1 {
			text = "1 GPU"
		}
	case gpu.ValidProfile(text):
		expression = selector(gpu.KindMIG, fmt.Sprintf(" && device.attributes[%q].profile == %q", driver, text))
		text = "a partition " + text
	case notMemory == nil && memory.Sign() > 0:
		expression = selector(gpu.KindGPU, "")
		request.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": memory}}
		text = memory.String() + " of a GPU's memory"
	default:
		return Wish{}, fmt.Errorf("%q is no wish: give %s", text, WishHelp)
	}
	return Wish{
		Text: text,
		Class: &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: request.DeviceClassName}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
		}},
		Claims: []*resourceapi.ResourceClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "wish", Namespace: "kubectl-gpu", UID: types.UID("wish")},
			Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "wish", Exactly: &request}}}},
		}},
	}, nil
}
