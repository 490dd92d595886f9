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

// GoalHelp names the forms of a goal.
const GoalHelp = "a group of linked GPUs (nvlink-4), so many GPUs of one node (4), a MIG profile (3g.40gb) or memory " +
	"of one GPU (40Gi)"

var groupGoal = regexp.MustCompile(`^nvlink-([0-9]{1,3})$`)

// ParseGoal returns the goal for a text. Its class selects the devices of the driver, so that no class of the cluster
// is needed.
func ParseGoal(driver, text string) (Goal, error) {
	selector := func(kind gpu.Kind, more string) string {
		return fmt.Sprintf("device.driver == %q && device.attributes[%q].type == %q", driver, driver, kind) + more
	}
	request := resourceapi.ExactDeviceRequest{
		DeviceClassName: "goal." + driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}
	var expression string
	count, notCount := strconv.ParseInt(text, 10, 64)
	memory, notMemory := resource.ParseQuantity(text)
	switch size := groupGoal.FindStringSubmatch(text); {
	case len(size) > 0:
		gpus, _ := strconv.Atoi(size[1]) // The form has digits only.
		expression = selector(gpu.KindGroup, fmt.Sprintf(" && device.attributes[%q].gpuCount == %d", driver, gpus))
		text = fmt.Sprintf("an NVLink group of %d GPUs", gpus)
	case notCount == nil:
		if count < 1 || count > resourceapi.AllocationResultsMaxSize {
			return Goal{}, fmt.Errorf("%q: ask for 1 to %d GPUs", text, resourceapi.AllocationResultsMaxSize)
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
		request.Capacity = &resourceapi.CapacityRequirements{
			Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": memory},
		}
		text = memory.String() + " of a GPU's memory"
	default:
		return Goal{}, fmt.Errorf("%q: give %s", text, GoalHelp)
	}
	return Goal{
		Text: text,
		Class: &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: request.DeviceClassName},
			Spec: resourceapi.DeviceClassSpec{
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
			}},
		Claims: []*resourceapi.ResourceClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "goal", Namespace: "kubectl-gpu", UID: types.UID("goal")},
			Spec: resourceapi.ResourceClaimSpec{
				Devices: resourceapi.DeviceClaim{
					Requests: []resourceapi.DeviceRequest{{Name: "goal", Exactly: &request}},
				},
			},
		}},
	}, nil
}
