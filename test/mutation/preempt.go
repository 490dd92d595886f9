// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

const preemption = "./pkg/cluster/preempt"

// preemptMutations take from preemption what keeps it to the scheduler's word, and its memory of what did not help.
var preemptMutations = []Mutation{
	{
		Name: "pods are evicted for a pod that has changed", File: "pkg/cluster/preempt/evict.go",
		Old:     "return err // The pod has changed: it may have a node now, or be deleted.",
		New:     "_ = err",
		Package: preemption, Test: "TestKeeper_PodChangesDuringTheSearch_EvictsNone",
	},
	{
		Name: "the nomination is for any version of a pod", File: "pkg/cluster/preempt/evict.go",
		Old: `"uid": pod.UID, "resourceVersion": pod.ResourceVersion}`, New: `"uid": pod.UID}`,
		Package: preemption, Test: "TestKeeper_PodChangesDuringTheSearch_EvictsNone",
	},
	{
		Name: "evictions that do not help go on each minute", File: "pkg/cluster/preempt/step.go",
		Old: "again<<min(count, 6)", New: "again",
		Package: preemption, Test: "TestKeeper_EvictionsDoNotHelp_BackOffByOwner",
	},
	{
		Name: "a new pod of the same owner knows no vain evictions", File: "pkg/cluster/preempt/step.go",
		Old: "		return pod.Namespace + \"/\" + string(owner.UID)\n", New: "		return string(pod.UID)\n",
		Package: preemption, Test: "TestKeeper_EvictionsDoNotHelp_BackOffByOwner",
	},
	{
		Name: "pods that never fit are searched first", File: "pkg/cluster/preempt/step.go",
		Old: "		k.searched[queue[next].pod.UID] = now\n", New: "",
		Package: preemption, Test: "TestKeeper_PodsThatNeverFit_DoNotStarveOthers",
	},
	{
		Name: "a pod that cannot start takes devices first", File: "pkg/cluster/preempt/step.go",
		Old: "			waitsForDevices(o, now) && now.Sub", New: "			now.Sub",
		Package: preemption, Test: "TestKeeper_PodOfHigherPriorityCannotStart_IsNotFirst",
	},
	{
		Name: "a pod that never starts takes devices first for ever", File: "pkg/cluster/preempt/step.go",
		Old: " && now.Sub(a.since) < aheadFor {", New: " {",
		Package: preemption, Test: "TestKeeper_PodBeforeNeverStarts_CountsForFiveMinutes",
	},
	{
		Name: "pods are evicted though none lacks devices only", File: "pkg/cluster/preempt/step.go",
		Old: "w.said.Unschedulable && w.said.Lacks() > 0", New: "w.said.Unschedulable",
		Package: preemption, Test: "TestKeeper_SchedulerNamesAnotherReason_EvictsNone",
	},
	{
		Name: "pods are evicted on a node that a running pod closes", File: "pkg/cluster/preempt/step.go",
		Old: "!repelled.Has(n.Name) && ", New: "(true || !repelled.Has(n.Name)) && ",
		Package: preemption, Test: "TestKeeper_RunningPodKeepsItOut_EvictsElsewhere",
	},
	{
		Name: "a victim that is never evicted is tried for ever", File: "pkg/cluster/preempt/evict.go",
		Old:     "refusal{sure || repeated, now.Add(refusedFor)}",
		New:     "refusal{(sure || repeated) && false, now.Add(refusedFor)}",
		Package: preemption, Test: "TestKeeper_EvictionRefused_NextVictim",
	},
	{
		Name: "an overloaded API server is taken for a disruption budget", File: "pkg/cluster/preempt/evict.go",
		Old:     "k.o.Violate && (apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause)",
		New:     "k.o.Violate && (apierrors.IsTooManyRequests(err)",
		Package: preemption, Test: "TestKeeper_OverloadedServer_DeletesNone",
	},
	{
		Name: "a victim that stays blocks its node for a year", File: "pkg/cluster/preempt/step.go",
		Old: "			until = longest\n", New: "",
		Package: preemption, Test: "TestKeeper_VictimStaysForAYear_ForgottenAfterTenMinutes",
	},
	{
		Name: "a pod that leaves in an hour makes room", File: "pkg/cluster/pack/preempt.go",
		Old: "wait > -leaveFor && wait <= leavesWithin", New: "wait > -leaveFor",
		Package: "./pkg/cluster/pack", Test: "TestPreempt_PodThatMayNotBeAVictim_IsNone",
	},
	{
		Name: "one's own label exempts a pod from eviction", File: "pkg/cluster/preempt/manager.go",
		Old: "pack.Apart(pod) != \"\" && !l.managed(ctx, pod)", New: "false",
		Package: preemption, Test: "TestKeeper_VictimHasMarkOfAManager_ExemptOnlyIfThatExists",
	},
	{
		Name: "a manager that cannot be read does not exist", File: "pkg/cluster/preempt/manager.go",
		Old: "answer = known{true,", New: "answer = known{false,",
		Package: preemption, Test: "TestKeeper_ManagersUnknown_ExemptIfTheyMayExist",
	},
	{
		Name: "pods are evicted beside a scheduler that preempts", File: "pkg/cluster/preempt/step.go",
		Old: " || k.yields(ctx, now) {", New: " {",
		Package: preemption, Test: "TestKeeper_SchedulerPreempts_EvictsNone",
	},
	{
		Name: "a namespace that was away comes first", File: "pkg/cluster/act/act.go",
		Old: "			t[one] = next\n", New: "			t[one] = min(next, 0)\n",
		Package: preemption, Test: "TestKeeper_NamespacesPodsComeAndGo_OthersGetTheirTurn",
	},
	{
		Name: "a new pod before another one counts for five more minutes", File: "pkg/cluster/preempt/step.go",
		Old: "a.since = k.first[a.owner]", New: "a.since = now",
		Package: preemption, Test: "TestKeeper_PodsBeforeReplaceEachOther_CountForFiveMinutes",
	},
	{
		Name: "a namespace's evictions count for the controller of another one", File: "pkg/cluster/preempt/step.go",
		Old: "		return pod.Namespace + \"/\" + string(owner.UID)\n", New: "		return string(owner.UID)\n",
		Package: preemption, Test: "TestKeeper_AnotherNamespaceNamesTheController_NoBackOff",
	},
	{
		Name: "a pod on another node exempts the victims of its claim", File: "pkg/cluster/pack/unit.go",
		Old: "		} else if p.o.preempt == nil {\n", New: "		} else {\n",
		Package: preemption, Test: "TestKeeper_PodElsewhereNamesTheClaim_VictimIsEvicted",
	},
	{
		Name: "the controller may write the status of pods", File: chart + "/templates/admissionpolicy.yaml",
		Old: "field == 'nominatedNodeName' ||", New: "field != '' ||",
		Package: charts, Test: "TestWritesPolicies_PodStatus_OnlyItsNomination",
	},
	{
		Name: "the controller may evict pods of the cluster itself", File: chart + "/templates/admissionpolicy.yaml",
		Old: "append (.Values.preemption.exemptNamespaces | default list)", New: "append list",
		Package: charts, Test: "TestWritesPolicies_Evictions_OutsideExemptNamespacesOnly",
	},
	{
		Name: "a search in a large cluster looks at its first part only", File: "pkg/cluster/preempt/step.go",
		Old: "k.turn[w.pod.UID] % parts", New: "0 % parts",
		Package: preemption, Test: "TestKeeper_LargeCluster_SearchesEachPartInTurn",
	},
	{
		Name: "all nodes of a large cluster are searched, a part each time", File: "pkg/cluster/preempt/step.go",
		Old: "nodes = pack.Narrow(", New: "_ = pack.Narrow(",
		Package: preemption, Test: "TestKeeper_LargeCluster_LooksOnlyWhereVictimsMaySuffice",
	},
	{
		Name: "victims that a webhook denies by its own code are tried for ever", File: "pkg/cluster/preempt/evict.go",
		Old: "err != nil && strings.Contains(err.Error(), denied)", New: "err != nil && false",
		Package: preemption, Test: "TestKeeper_EvictionRefused_NextVictim",
	},
	{
		Name: "the next victim waits half a minute after a refused one", File: "pkg/cluster/preempt/evict.go",
		Old: "delete(a.due, a.pod.UID)", New: "_ = a.pod.UID",
		Package: preemption, Test: "TestKeeper_EvictionRefused_NextVictim",
	},
	{
		Name: "in random clusters, the nomination is for any version of a pod", File: "pkg/cluster/preempt/evict.go",
		Old: `"uid": pod.UID, "resourceVersion": pod.ResourceVersion}`, New: `"uid": pod.UID}`,
		Package: preemption, Test: "TestKeeper_RandomAttacks_EachEvictionHelpsOrIsNotRepeated",
	},
	{
		Name: "in random clusters, evictions that do not help go on each minute", File: "pkg/cluster/preempt/step.go",
		Old: "again<<min(count, 6)", New: "again",
		Package: preemption, Test: "TestKeeper_RandomAttacks_EachEvictionHelpsOrIsNotRepeated",
	},
	{
		Name: "in random clusters, a new pod of the same owner knows no vain evictions", File: "pkg/cluster/preempt/step.go",
		Old: "\"/\" + string(owner.UID)", New: "\"/\" + string(pod.UID)",
		Package: preemption, Test: "TestKeeper_RandomAttacks_EachEvictionHelpsOrIsNotRepeated",
	},
	{
		Name: "in random clusters, pods that never fit are searched first", File: "pkg/cluster/preempt/step.go",
		Old: "		k.searched[queue[next].pod.UID] = now\n", New: "",
		Package: preemption, Test: "TestKeeper_RandomAttacks_EachEvictionHelpsOrIsNotRepeated",
	},
	{
		Name: "in random clusters, pods are evicted though none lacks devices only", File: "pkg/cluster/preempt/step.go",
		Old: "w.said.Unschedulable && w.said.Lacks() > 0", New: "w.said.Unschedulable",
		Package: preemption, Test: "TestKeeper_RandomAttacks_EachEvictionHelpsOrIsNotRepeated",
	},
	{
		Name: "anyone's claim counts as an attempt for a pod", File: "pkg/cluster/budget/enforcement/reviews.go",
		Old: "owner == nil || !slices.Contains(makers, account)", New: "owner == nil",
		Package: "./pkg/cluster/budget/enforcement", Test: "TestBudgets_QuotaRefusesPodsClaim_OneReservation",
	},
}
