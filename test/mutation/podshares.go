// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

const podShares = "./pkg/cluster/podshares"

// podShareMutations take from the templates of shares what leaves users' templates alone, and tenants bounded.
var podShareMutations = []Mutation{
	{
		Name: "a user's template counts as the share's", File: "pkg/cluster/podshares/keeper.go",
		Old: "return errors.New(\"there is one of this name with another content; rename it\")", New: "return nil",
		Package: podShares, Test: "TestKeeper_NamesOfOthers_AreLeftAlone",
	},
	{
		Name: "a tenant has any number of templates", File: "pkg/cluster/podshares/keeper.go",
		Old: "count[name.Namespace] >= mostTemplates:", New: "count[name.Namespace] < 0:",
		Package: podShares, Test: "TestKeeper_TenantWithManyAmounts_IsBounded",
	},
	{
		Name: "a template goes with its last pod", File: "pkg/cluster/podshares/keeper.go",
		Old: "k.unused[name].Add(k.o.Grace).Sub(now)", New: "k.unused[name].Sub(now)",
		Package: podShares, Test: "TestKeeper_PodsNameTemplates_ExistWhileUsed",
	},
	{
		Name: "templates of fractions go with the GPUs", File: "pkg/cluster/podshares/keeper.go",
		Old: "		return nil // The GPUs may come back.\n", New: "		return k.remove(ctx, found)\n",
		Package: podShares, Test: "TestKeeper_Fraction_IsThatOfEachSize",
	},
	{
		Name: "a fraction has one size only", File: "pkg/cluster/podshares/template.go",
		Old: "sizes[:min(len(sizes), mostSizes)]", New: "sizes[:min(len(sizes), 1)]",
		Package: podShares, Test: "TestKeeper_Fraction_IsThatOfEachSize",
	},
	{
		Name: "an old failure is never tried again", File: "pkg/cluster/podshares/keeper.go",
		Old: "k.failed[name] = now.Add(retry)", New: "k.failed[name] = now.Add(1000 * retry)",
		Package: podShares, Test: "TestKeeper_WritesFail_PodHasEventAndTemplateFollows",
	},
}
