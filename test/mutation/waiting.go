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
		Name: "a pod whose scheduler is silent fits", File: "pkg/cluster/why/text.go",
		Old: "a.Result == Fits && (silence != \"\" || len(others) > 0)", New: "a.Result == Fits && len(others) > 0",
		Package: "./cmd/kubectl-gpu", Test: "TestDocs_Diagnosis_EachToolNamesTheCause",
	},
	{
		Name: "nothing is left to allocate for claims of different nodes", File: "pkg/cluster/why/settle.go",
		Old: "a.closed(by, s, w)", New: "_ = by",
		Package: "./cmd/kubectl-gpu", Test: "TestDocs_Diagnosis_EachToolNamesTheCause",
	},
	{
		Name: "the GPUs of a cordoned node are free", File: "pkg/show/view/build.go",
		Old: "case n.Spec.Unschedulable:", New: "case false:",
		Package: "./pkg/show/web", Test: "TestCluster_NodeClosed_GPUsAreNotFree",
	},
	{
		Name: "a file may have unknown fields", File: "pkg/cluster/why/manifest.go",
		Old: "serializer.EnableStrict", New: "serializer.DisableStrict",
		Package: "./cmd/kubectl-gpu", Test: "TestWhyOfFile_Objects_SayWhatAnAPIServerSays",
	},
	{
		Name: "init containers cost nothing", File: "pkg/cluster/budget/counter.go",
		Old: "&corev1.Pod{Spec: spec}", New: "&corev1.Pod{Spec: corev1.PodSpec{Containers: spec.Containers}}",
		Package: controllerProgram, Test: "TestWaitingPods_RandomTraits_FivePartsAgree",
	},
}
