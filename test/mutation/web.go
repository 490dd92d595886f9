// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

const webPage = "./pkg/show/web"

var webMutations = []Mutation{
	{
		Name: "the page answers to any name of this machine's address", File: "pkg/show/web/guard.go",
		Old: "case !loopback(r.Host):", New: "case false:",
		Package: webPage, Test: "TestGuard_Requests_OnlyTheOwnPagePasses",
	},
	{
		Name: "the page needs no token", File: "pkg/show/web/guard.go",
		Old: "ConstantTimeCompare([]byte(given), []byte(token)) != 1 || !ok", New: "ConstantTimeCompare([]byte(given), []byte(token)) > 1 || !ok",
		Package: webPage, Test: "TestGuard_Requests_OnlyTheOwnPagePasses",
	},
	{
		Name: "another web site can read the page's data", File: "pkg/show/web/guard.go",
		Old: "case crossSite(r):", New: "case false:",
		Package: webPage, Test: "TestGuard_Requests_OnlyTheOwnPagePasses",
	},
	{
		Name: "nodes are shown before their holders are known", File: "pkg/show/web/refresh.go",
		Old: "if reading.Len() == 0 || reading.Len() == 1 && reading.Has(Slices) {", New: "if reading.Len() <= 1 || reading.Has(Slices) {",
		Package: webPage, Test: "TestCluster_FirstReading_ShowsCompleteNodesOnceClaimsAreThere",
	},
	{
		Name: "the earlier node of a pool is not drawn again", File: "pkg/show/web/refresh.go",
		Old: "			changed.Insert(before)\n", New: "			_ = before\n",
		Package: webPage, Test: "TestCluster_RandomChanges_EqualViewOfAllObjects",
	},
	{
		Name: "objects that vanished between two watches stay on the page", File: "pkg/show/web/cluster.go",
		Old: "		if !keys.Has(key) {", New: "		if false {",
		Package: webPage, Test: "TestFollow_Answers_ClaimsAndNotes",
	},
}
