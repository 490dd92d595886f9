#!/usr/bin/env bash
# Tests the chart's rules, dashboards and documented queries: their names, the rules' unit tests, and a Prometheus server
# that scrapes a cluster, with a HorizontalPodAutoscaler on its metrics. Usage: test-monitoring.sh KUBERNETES [REGEX]
set -euo pipefail
cd "$(dirname "$0")/.."
PROMETHEUS=$(hack/tool.sh --path prometheus)
PROMTOOL=$(hack/tool.sh --path promtool)
export PROMETHEUS PROMTOOL
"$PROMTOOL" check rules deployments/helm/gpu-dra-driver/monitoring/rules.yaml
"$PROMTOOL" test rules test/monitoring/testdata/alerts_test.yaml
go -C test/monitoring test -count=1 ./...
PROMETHEUS_ADAPTER=$(hack/tool.sh --path adapter)
export PROMETHEUS_ADAPTER
# Only KEDA's definition of ScaledObject is needed. The checksum is that of go.sum files.
keda=$(go mod download -json github.com/kedacore/keda/v2@v2.21.0)
grep -q '"Sum": "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps="' <<<"$keda" || {
  echo "test-monitoring.sh: the module of KEDA has another checksum: $keda" >&2
  exit 1
}
KEDA_SCALEDOBJECT=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$keda")/config/crd/bases/keda.sh_scaledobjects.yaml
export KEDA_SCALEDOBJECT
cd test
dir=$(mktemp -d)
trap 'rmdir "$dir" 2>/dev/null || true' EXIT
../bin/onenode run --dir "$dir/cluster" --kubernetes "$1" -- \
  go test -count=1 -v -timeout 40m -tags e2e -run "${2:-.}" ./e2e/monitoring
