// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package helm tests the charts in this directory. The driver's chart must pass helm lint,
// its manifests must match the goldens and the API's schemas, and its README must
// list its values. Tests also cover the decisions of its admission policies and
// the matching of its webhooks.
//
// Helm and kubeconform are built from Go modules by hack/tool.sh. The schemas in
// testdata/schemas come from Kubernetes 1.37.1. To renew them, run with the
// directory of that module's OpenAPI documents (its path is in the output of go mod download -json
// k8s.io/kubernetes@v1.37.1):
//
//	go run ./gen schemas DIR/api/openapi-spec/v3 testdata/schemas core/v1/Pod …
//
// with one group/version/Kind for each existing file. Those of cert-manager,
// the Prometheus operator and GPU budgets are written by hand and know no more of their
// kinds than the chart and the demos use.
package helm

//go:generate go run ./gen readme gpu-dra-driver
//go:generate go run ./gen readme gpu-simulator
//go:generate go run ./gen attributes gpu-dra-driver
//go:generate go run ./gen faults gpu-dra-driver
//go:generate go run ./dashboards gpu-dra-driver/monitoring/dashboards
