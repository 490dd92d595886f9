// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// formMutations change the files that a release leaves to the next one, and what identifies a claim's board and partition.
var formMutations = []Mutation{
	{
		Name: "the digest for earlier releases changes", File: "pkg/claim/plan/allocation.go",
		Old: "hex.EncodeToString(sum[:16])", New: "hex.EncodeToString(sum[:15])",
		Package: "./pkg/claim/plan", Test: "TestDigest_ForEarlierReleases_NeverChanges",
	},
	{
		Name: "the digest for earlier releases lacks the share", File: "pkg/claim/plan/allocation.go",
		Old: "one.Share = string(*r.ShareID)", New: "one.Share = \"\"",
		Package: "./pkg/claim/plan", Test: "TestDigest_ForEarlierReleases_NeverChanges",
	},
	{
		Name: "the digest in records of earlier releases is not compared", File: "pkg/claim/plan/allocation.go",
		Old: "return p.Digest == o.Digest", New: "return false",
		Package: state, Test: "TestForms_ClaimsOfEarlierReleases_PreparedAgainUnchanged",
	},
	{
		Name: "parameters are compared by their bytes", File: "pkg/claim/plan/allocation.go",
		Old: "canonical(c.Opaque.Parameters.Raw)}", New: "c.Opaque.Parameters.Raw}",
		Package: state, Test: "TestPrepare_ClaimEncodedOtherwise_KeepsDevices",
	},
	{
		Name: "the share of an allocation is not compared", File: "pkg/claim/plan/allocation.go",
		Old: "one.ShareID = string(*r.ShareID)", New: "one.ShareID = \"\"",
		Package: "./pkg/claim/plan", Test: "TestAllocation_OtherDevicesOrParameters_Differ",
	},
	{
		Name: "the parameters of an allocation are not compared", File: "pkg/claim/plan/allocation.go",
		Old: "&& bytes.Equal(c.Parameters, d.Parameters)", New: "",
		Package: "./pkg/claim/plan", Test: "TestAllocation_OtherDevicesOrParameters_Differ",
	},
	{
		Name: "a key of plans is renamed", File: "pkg/claim/plan/plan.go",
		Old: "`json:\"minor\"`", New: "`json:\"minorNumber\"`",
		Package: state, Test: "TestForms_EveryKey_HasGoldenAndIsRead",
	},
	{
		Name: "a key of partitions is renamed", File: "pkg/claim/plan/plan.go",
		Old:     "UUID            string `json:\"uuid,omitempty\"`",
		New:     "UUID            string `json:\"deviceUUID,omitempty\"`",
		Package: state, Test: "TestForms_ClaimsOfEarlierReleases_PreparedAgainUnchanged",
	},
	{
		Name: "a key of records is renamed", File: "pkg/claim/record/record.go",
		Old: "`json:\"renews,omitempty\"`", New: "`json:\"replaces,omitempty\"`",
		Package: state, Test: "TestForms_EveryKey_HasGoldenAndIsRead",
	},
	{
		Name: "a key of GPU records is renamed", File: "pkg/claim/record/gpu.go",
		Old: "`json:\"wiring,omitzero\"`", New: "`json:\"interconnect,omitzero\"`",
		Package: "./pkg/claim/record", Test: "TestGPU_EarlierForms_AreRead",
	},
	{
		Name: "the record of another board in a slot counts", File: "pkg/claim/record/gpu.go",
		Old: "r.BootID == boot && r.UUID == uuid:", New: "r.BootID == boot:",
		Package: "./pkg/claim/record", Test: "TestGPUs_AnotherBoardInSlot_RecordIsNotUsed",
	},
	{
		Name: "another board in a slot gets the earlier one's setting", File: "pkg/claim/record/gpu.go",
		Old: "if r.UUID != uuid || r.BootID != boot && !outlivesBoot {", New: "if r.BootID != boot && !outlivesBoot {",
		Package: "./pkg/claim/record", Test: "TestGPUs_AnotherBoardInSlot_RecordIsNotUsed",
	},
	{
		Name: "another board in a slot is taken for the claim's", File: "internal/nvml/sessionpool/sessionpool.go",
		Old: "	if is != g.uuid {\n", New: "	if is == \"\" {\n",
		Package: partitions, Test: "TestClaim_AnotherBoardInItsSlot_NewBoardStaysAsItIs",
	},
	{
		Name: "an administrator's bare instance is destroyed as the claim's", File: "pkg/partition/mig/partition.go",
		Old: "		return i.info.ID == p.GPUInstance\n", New: "		return true\n",
		Package: partitions, Test: "TestClaim_BareInstanceInItsPlace_IsTheAdministrators",
	},
	{
		Name: "an administrator's bare instance is completed for a claim", File: "pkg/partition/mig/partition.go",
		Old: "len(exact.computes) == 0 && exact.info.ID == p.GPUInstance,", New: "len(exact.computes) == 0,",
		Package: partitions, Test: "TestClaim_BareInstanceInItsPlace_IsTheAdministrators",
	},
	{
		Name: "another board in a slot has the earlier one's faults", File: "pkg/node/health/tracker/tracker.go",
		Old: "	case r.UUID != g.UUID:\n", New: "	case r.UUID == \"\":\n",
		Package: "./pkg/node/health/tracker", Test: "TestTracker_NodeReboots_KeepsFaultsOfTheBoard",
	},
	{
		Name: "a negative part of the SMs is reserved", File: "pkg/claim/plan/parameters.go",
		Old: "percent := compute.CmpInt64(0) >= 0 && ", New: "percent := ",
		Package: "./pkg/claim/plan", Test: "TestMake_AnyComputeConsumed_LimitedOrRefused",
	},
}
