// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command gen writes what is derived around the chart.
//
//	gen readme CHART              the table of values in CHART/README.md
//	gen attributes CHART          the kind of each attribute in CHART/templates/_attributes.tpl
//	gen faults CHART              known faults of schedulers, for the chart's notes
//	gen schemas SPECS OUT KIND…   JSON schemas for kubeconform
//
// The table comes from the comments in values.yaml that begin with "# --"; a
// line "# @default -- TEXT" below replaces the shown default. A value without
// such a comment is an error.
//
// The schemas come from an API server's OpenAPI v3 documents, which the module
// k8s.io/kubernetes carries in api/openapi-spec/v3; a KIND is group/version/Kind,
// with "core" for the group without a name. They are strict: an unknown field is
// an error. Only the kinds that the chart and the demos use are kept, since
// kubeconform would fetch any other from the network.
package main
