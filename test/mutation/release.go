// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

const releases = "./deployments/release"

// releaseMutations break the rules of a release.
var releaseMutations = []Mutation{
	{
		Name: "a released version is replaced", File: "deployments/release/push.go",
		Old: "} else if there.Digest != digest {", New: "} else if there.Digest != digest && false {",
		Package: releases, Test: "TestRelease_LocalRegistry_HasAll",
	},
	{
		Name: "a chart is pushed without its images", File: "deployments/release/push.go",
		Old: "\tif p.err != nil {\n\t\treturn\n\t}\n\tref := p.parse(repository, at)\n", New: "\tp.err = nil\n\tref := p.parse(repository, at)\n",
		Package: releases, Test: "TestRelease_PushFails_ChartIsNotThere",
	},
	{
		Name: "a tree with other changes is published", File: "deployments/release/main.go",
		Old: "if sources.dirty {", New: "if sources.dirty && false {",
		Package: releases, Test: "TestRelease_NotToPublish_Refused",
	},
	{
		Name: "a chart names images of another build", File: "deployments/release/images.go",
		Old: "if im.digest.String() != digest {", New: "if im.digest.String() != digest && false {",
		Package: releases, Test: "TestRelease_NotToPublish_Refused",
	},
	{
		Name: "a chart has no digests", File: "deployments/release/chart.go",
		Old: "settings = append(settings, setting{im.value, im.digest.String()})", New: "_ = im",
		Package: releases, Test: "TestRelease_LocalRegistry_HasAll",
	},
}
