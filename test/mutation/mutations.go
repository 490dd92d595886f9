// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "slices"

const (
	state      = "./pkg/devicestate"
	built      = "./pkg/node/resourceslices"
	partitions = "./pkg/partition/mig"
	control    = "./pkg/cluster/controller"
	reviews    = "./pkg/cluster/admission"
	charts     = "./deployments/helm"
)

// mutations lists all mutations, each with the test that must fail.
var mutations = slices.Concat(
	claimMutations, formMutations, planMutations, gpuMutations, pluginMutations, clusterMutations, waitingMutations,
	preemptMutations, podShareMutations, webMutations, releaseMutations, simulatorMutations,
)
