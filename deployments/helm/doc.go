// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package helm checks the chart beside it: that it lints, that what it renders
// is what the goldens show and what an API server takes, that its admission
// policies decide and its webhooks are asked as they should, and that its README
// shows its values.
//
// Helm and kubeconform are built from Go modules by hack/tool.sh. The schemas in
// testdata/schemas are those of Kubernetes 1.37.1; to renew them, run with the
// directory of that module's OpenAPI documents (go mod download -json
// k8s.io/kubernetes@v1.37.1 says where):
//
//	go run ./gen schemas DIR/api/openapi-spec/v3 testdata/schemas core/v1/Pod …
//
// with one group/version/Kind for each file that is there. Those of cert-manager
// and the Prometheus operator are written by hand and know no more of their
// kinds than the chart uses.
package helm

//go:generate go run ./gen readme gpu-dra-driver
