// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

const simulatorAgent = "./sim/agent"

// simulatorMutations break the rules of the simulator's agent on a node.
var simulatorMutations = []Mutation{
	{
		Name: "a drain removes a node's simulated board", File: "sim/agent/agent.go",
		Old: "\tif !deleted {\n", New: "\tif !deleted && false {\n",
		Package: simulatorAgent, Test: "TestRun_EndOfPod_RemovesMachineOnlyWithDaemonSet",
	},
	{
		Name: "a silent API server removes a node's simulated board", File: "sim/agent/agent.go",
		Old: "\t\ta.Log.Warn(\"The agent's DaemonSet", New: "\t\tdeleted = true\n\t\ta.Log.Warn(\"The agent's DaemonSet",
		Package: simulatorAgent, Test: "TestRun_EndOfPod_RemovesMachineOnlyWithDaemonSet",
	},
	{
		Name: "a node with GPUs gets a simulated board", File: "sim/agent/agent.go",
		Old: "if Real(node.Labels) && want", New: "if Real(node.Labels) && false && want",
		Package: simulatorAgent, Test: "TestAgent_NodeWithHardware_GetsNoBoard",
	},
	{
		Name: "the label of a node's own hardware is removed", File: "sim/agent/agent.go",
		Old: "has && !Real(node.Labels):", New: "has:",
		Package: simulatorAgent, Test: "TestAgent_NodeWithHardware_GetsNoBoard",
	},
	{
		Name: "a simulated machine of others is replaced", File: "sim/agent/machine.go",
		Old: "case s.Origin == \"\":", New: "case s.Origin == \"\" && false:",
		Package: simulatorAgent, Test: "TestApply_MachineOfOthers_Stays",
	},
	{
		Name: "a simulated machine with an unreadable state is removed", File: "sim/agent/machine.go",
		Old: "\tcase err != nil:\n\t\treturn nil, err\n\tcase s.Origin", New: "\tcase err != nil:\n\t\treturn nil, nil\n\tcase s.Origin",
		Package: simulatorAgent, Test: "TestApply_MachineOfOthers_Stays",
	},
	{
		Name: "a replaced machine has other directories", File: "sim/driverroot/root.go",
		Old: "return stay[p] })", New: "return stay[p] && false })",
		Package: "./sim/driverroot", Test: "TestReplace_OtherBoard_KeepsDirectoriesThatContainersMount",
	},
	{
		Name: "an unread kubelet ends the load of pods", File: "sim/agent/loads.go",
		Old: "return errors.Join(problem, err)\n\t\t}\n\t}\n\tset", New: "problem = errors.Join(problem, err)\n\t\t}\n\t}\n\tset",
		Package: simulatorAgent, Test: "TestLoads_AnnotatedPods_LoadTheirDevices",
	},
	{
		Name: "a pod that ended keeps its load", File: "sim/agent/loads.go",
		Old: "if !ok || p.Status.Phase != corev1.PodRunning {", New: "if !ok {",
		Package: simulatorAgent, Test: "TestLoads_AnnotatedPods_LoadTheirDevices",
	},
}
