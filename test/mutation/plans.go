// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// planMutations change plans of claims, CDI specs, names and NVLink groups.
var planMutations = []Mutation{
	{
		Name: "watching counts as holding", File: "pkg/claim/plan/make.go",
		Old: "Kind: named.Kind, Admin: admin,", New: "Kind: named.Kind,",
		Package: state, Test: "TestPrepare_Monitor_DoesNotHoldGPU",
	},
	{
		Name: "partitions that overlap do not", File: "pkg/gpu/snapshot.go",
		Old: "return p.Start < o.End() && o.Start < p.End()", New: "return p.Start == o.Start && p.End() == o.End()",
		Package: built, Test: "TestBuild_MIGModesAndHeldPartitions_PublishesExpectedDevices",
	},
	{
		Name: "two requests have the limit of the first", File: "pkg/claim/plan/parameters.go",
		Old: "= new(d.Share.UsableBytes), d.Share.Compute", New: "= new(p.Devices[0].Share.UsableBytes), d.Share.Compute",
		Package: "./pkg/claim/plan", Test: "TestMake_SeveralShares_LimitsEachRequest",
	},
	{
		Name: "a request has two daemons", File: "pkg/claim/plan/parameters.go",
		Old: "d.Request == other.Request && d.Name != other.Name:", New: "d.Request == other.Request && d.Name == other.Name:",
		Package: "./pkg/claim/plan", Test: "TestMake_InvalidShare_ReturnsError",
	},
	{
		Name: "a daemon is limited to the first request", File: "pkg/claim/plan/share.go",
		Old: "w.Devices[i].Name == w.Target().Name && w", New: "i == w.Device && w",
		Package: partitions, Test: "TestShares_RandomMoves_KeepsInvariants",
	},
	{
		Name: "a share of nothing has no limit", File: "pkg/claim/plan/share.go",
		Old: "(total/sharing.Step), 1) * sharing.Step", New: "(total/sharing.Step), 0) * sharing.Step",
		Package: built, Test: "TestBuild_AnyMemoryRequested_LimitsProcessToCharge",
	},
	{
		Name: "Prepare takes a share below the floor", File: "pkg/claim/plan/parameters.go",
		Old: "if s.MemoryBytes < sharing.MinMemory && p.Refused == nil {", New: "if s.MemoryBytes < 0 && p.Refused == nil {",
		Package: "./pkg/claim/plan", Test: "TestMake_AnyMemoryConsumed_LimitedOrRefused",
	},
	{
		Name: "a claim that names no capacity gets a share", File: "pkg/claim/sharing/policy.go",
		Old: "Memory: total / Step * Step,", New: "Memory: total / Step / 2 * Step,",
		Package: built, Test: "TestBuild_NoCapacityRequested_AllocatesGPUAlone",
	},
	{
		Name: "co-tenants need not agree", File: "pkg/claim/plan/share.go",
		Old: "case a.Strategy != b.Strategy:", New: "case a.Strategy != b.Strategy && a.Timed && b.Timed:",
		Package: "./pkg/claim/plan", Test: "TestDisagrees_DifferentSharing_NamesTheDifference",
	},
	{
		Name: "a strategy has the row of another", File: "pkg/claim/sharing/strategy.go",
		Old: "return strategies[i]", New: "return strategies[0]",
		Package: "./pkg/claim/plan", Test: "TestMake_Share_HasMemoryAndSharing",
	},
	{
		Name: "the file for NCCL outlives its claim", File: "pkg/cdi/store/store.go",
		Old: "if f.uid != uid || f.unfinished {", New: "if f.uid != uid || f.unfinished || f.name == Topology {",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "metadata files outlive their claim", File: "pkg/cdi/store/store.go",
		Old: "if f.uid != uid || f.unfinished {", New: "if f.uid != uid || f.unfinished || strings.HasPrefix(f.name, metadata) {",
		Package: state, Test: "TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing",
	},
	{
		Name: "a prepared claim follows the setting for metadata files", File: "pkg/devicestate/prepare.go",
		Old: "			p = old.Plan.Refreshed(p)\n", New: "			q := old.Plan.Refreshed(p)\n			q.Metadata = p.Metadata\n			p = q\n",
		Package: state, Test: "TestMetadata_SettingChanges_PreparedClaimsKeepTheirs",
	},
	{
		Name: "a lost spec beside other files of its claim is not missed", File: "pkg/devicestate/overlap.go",
		Old: "e.o.Specs.Written()", New: "e.o.Specs.UIDs()",
		Package: state, Test: "TestMissingSpecs_FilesBesideTheSpec_SpecIsMissing",
	},
	{
		Name: "the GPUs of a group have one position", File: "pkg/cdi/metadata.go",
		Old: "		index++\n", New: "",
		Package: "./pkg/cdi", Test: "TestMetadataFiles_EachKind_AreReadByKubernetes",
	},
	{
		Name: "a container gets the first GPU of its group alone", File: "pkg/cdi/spec.go",
		Old:     "			join(&spec.Devices[at[name]].ContainerEdits, edits.Devices[i])\n",
		New:     "",
		Package: state, Test: "TestPrepare_Group_OneDeviceWithOwnNCCLFile",
	},
	{
		Name: "the NCCL file has GPUs that the request has not", File: "pkg/claim/plan/parameters.go",
		Old:     "nccl.File(gpus)",
		New:     "nccl.File(m.node.Snapshot.GPUs)",
		Package: "./pkg/claim/plan", Test: "TestMake_Topology_NamesTheRequestsGPUs",
	},
	{
		Name: "a link that one end reports counts", File: "pkg/gpu/topology/interconnect.go",
		Old:     "if n = min(n, reported[[2]string{ends[1], ends[0]}]); n > 0 && !w.notPeers[ends] {",
		New:     "if n > 0 && !w.notPeers[ends] {",
		Package: "./pkg/gpu/topology", Test: "TestFind_LinksUncertain_AreIgnored",
	},
	{
		Name: "a GPU that lost a link stays in its groups", File: "pkg/gpu/topology/interconnect.go",
		Old:     "w.switched[address] = n == maxLinks[w.models[address]]",
		New:     "w.switched[address] = n > 0",
		Package: "./pkg/gpu/topology", Test: "TestFind_SwitchLinksFail_DropsTheirGroups",
	},
}
