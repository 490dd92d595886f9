#!/usr/bin/env bash
# Runs tests that need no cluster. The linters vet the code. Usage:
#
#   test-unit.sh short          a tenth of the random cases; the result of an unchanged package comes from Go's cache
#   test-unit.sh tenth          the same, and everything runs
#   test-unit.sh cover MINIMUM  the same, with the statement coverage of what ships, which must reach the minimum
#   test-unit.sh all            all random cases, all cases of matrices
#
# The variable MODULES runs a part. PHASE_REPORT is the prefix of files with the times of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh
[ -z "${GPU_DRA_SEED:-}" ] || echo "random cases begin at seed $GPU_DRA_SEED: the variable GPU_DRA_SEED repeats them" >&2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
runner=$(hack/tool.sh --path gotestsum)
failed=0
case $1 in
  short) how=(-short) ;;
  tenth) how=(-short -count=1) ;;
  cover) how=(-short -count=1 -coverprofile="$dir/cover" -coverpkg=gpu-dra-driver/pkg/...,gpu-dra-driver/internal/...,gpu-dra-driver/api/...) ;;
  all) how=(-count=1) ;;
  *) exit 2 ;;
esac
# With -exec Go keeps no results.
[ "$1" = short ] || how+=(-exec "$PWD/hack/timed.sh")
# Packages that the last commit or the working tree changes begin, so that most failures are seen early.
changed=$(git diff --name-only HEAD~1 2>/dev/null | sed -n 's,^,gpu-dra-driver/,; s,/[^/]*$,,p' | sort -u) || true # A clone can have no history.
for module in ${MODULES:-. deployments test test/monitoring test/cluster}; do
  packages=$(hack/packages.sh "$module" tested)
  [ -n "$packages" ] || continue
  packages=$(grep -Fx -- "$changed" <<<"$packages"; grep -Fxv -- "$changed" <<<"$packages") || true
  report=()
  [ -z "${PHASE_REPORT:-}" ] || report=(--jsonfile-timing-events "$PHASE_REPORT.${module//[.\/]/_}.json")
  # Many tests wait, so more packages run at once than there are processors.
  # shellcheck disable=SC2086 # packages are words
  (cd "$module" && "$runner" --format pkgname-and-test-fails --format-hide-empty-pkg "${report[@]}" -- "${how[@]}" -p 4 -vet=off -timeout 20m $packages) || failed=1
  [ $failed = 0 ] || [ -n "${KEEP_GOING:-}" ] || break
done
[ $failed = 0 ] || exit 1
[ "$1" != cover ] || go tool cover -func="$dir/cover" | awk -v least="$2" '/^total:/ {
  sub("%", "", $3)
  printf "statement coverage of pkg, internal and api: %s%% (at least %s%%)\n", $3, least
  exit ($3 + 0 < least + 0)
}'
