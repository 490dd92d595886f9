#!/usr/bin/env bash
# Tests the chart's rules, dashboards and documented queries: their names, the rules' unit tests, and a Prometheus server
# that scrapes a cluster. Usage: test-monitoring.sh KUBERNETES
set -euo pipefail
cd "$(dirname "$0")/.."
PROMETHEUS_DIR=$(hack/prometheus.sh)
export PROMETHEUS_DIR
"$PROMETHEUS_DIR/promtool" check rules deployments/helm/gpu-dra-driver/monitoring/rules.yaml
"$PROMETHEUS_DIR/promtool" test rules test/monitoring/testdata/alerts_test.yaml
go -C test/monitoring test -count=1 ./...
cd test
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
../bin/onenode run --dir "$dir/cluster" --kubernetes "$1" -- \
  go test -count=1 -v -timeout 20m -tags e2e ./e2e/monitoring
