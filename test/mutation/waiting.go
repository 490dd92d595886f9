// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

const controllerProgram = "./cmd/dra-controller"

// waitingMutations have one part answer otherwise than the others about a pod that waits for devices.
var waitingMutations = []Mutation{
	{
		Name: "pods get no Event unless the scheduler calls them unschedulable", File: "pkg/cluster/podevents/kind.go",
		Old: "if waiting.Waits(pod) && now", New: "if waiting.SaidOf(pod).Unschedulable && waiting.Waits(pod) && now",
		Package: controllerProgram, Test: "TestWaitingPods_RandomTraits_FivePartsAgree",
	},
	{
		Name: "a pod may run away from the devices of its claims", File: "pkg/cluster/why/nodes.go",
		Old: "pod, w.allocated, w.extended)", New: "pod, nil, w.extended)",
		Package: controllerProgram, Test: "TestWaitingPods_RandomTraits_FivePartsAgree",
	},
	{
		Name: "init containers cost nothing", File: "pkg/cluster/budget/counter.go",
		Old: "&corev1.Pod{Spec: spec}", New: "&corev1.Pod{Spec: corev1.PodSpec{Containers: spec.Containers}}",
		Package: controllerProgram, Test: "TestWaitingPods_RandomTraits_FivePartsAgree",
	},
}
