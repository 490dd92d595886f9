#!/usr/bin/env bash
# Tests the chart's rules with Prometheus' own tool, and the queries of rules and dashboards.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p bin
go -C test/cluster build -trimpath -o "$PWD/bin/gobuild" ./cmd/gobuild
(cd test/monitoring && CGO_ENABLED=0 ../../bin/gobuild promtool "$OLDPWD/bin/promtool" -trimpath -tags remove_all_sd \
  -ldflags "-s -w" github.com/prometheus/prometheus/cmd/promtool)
bin/promtool check rules deployments/helm/gpu-dra-driver/monitoring/rules.yaml
bin/promtool test rules test/monitoring/testdata/alerts_test.yaml
go -C test/monitoring test -count=1 ./...
