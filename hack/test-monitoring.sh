#!/usr/bin/env bash
# Tests the chart's rules, dashboards and documented queries: their names, the rules' unit tests, and a Prometheus server
# that scrapes a cluster, with a HorizontalPodAutoscaler on its metrics. Chromium draws the dashboards.
# Usage: test-monitoring.sh KUBERNETES [REGEX [go test arguments]]
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh
. hack/child.sh
PROMETHEUS=$(hack/tool.sh --path prometheus)
PROMTOOL=$(hack/tool.sh --path promtool)
export PROMETHEUS PROMTOOL
"$PROMTOOL" check rules deployments/helm/gpu-dra-driver/monitoring/rules.yaml
"$PROMTOOL" test rules test/monitoring/testdata/alerts_test.yaml
go -C test/monitoring test -count=1 ./...
PROMETHEUS_ADAPTER=$(hack/tool.sh --path adapter)
export PROMETHEUS_ADAPTER
# Only KEDA's definition of ScaledObject is needed here; test-ecosystem.sh runs KEDA. The checksum is computed as in go.sum files.
keda=$(go mod download -json github.com/kedacore/keda/v2@v2.21.0)
grep -q '"Sum": "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps="' <<<"$keda" || {
  echo "test-monitoring.sh: the module of KEDA has another checksum: $keda" >&2
  exit 1
}
KEDA_SCALEDOBJECT=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$keda")/config/crd/bases/keda.sh_scaledobjects.yaml
export KEDA_SCALEDOBJECT
version=$1
run=${2:-.}
shift $(($# < 2 ? $# : 2))
cd test
dir=$(mktemp -d)
# A killed test leaves its files and those of the browser.
mkdir "$dir/tmp"
trap 'rm -rf "$dir/tmp"; rmdir "$dir" 2>/dev/null || true' EXIT
child ../bin/onenode run --dir "$dir/cluster" --kubernetes "$version" -- \
  env TMPDIR="$dir/tmp" go test -count=1 -v -timeout 40m -tags "$TAGS,e2e" -run "$run" -skip '^TestInference_' ./e2e/monitoring "$@"
