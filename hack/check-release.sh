#!/usr/bin/env bash
# Fails while hack/owner.yaml or a page generated from it has a placeholder, or the changelog lacks the version. A
# prerelease such as 1.2.3-rc.1 has the changes under Unreleased. Usage: check-release.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
if git grep -n PLACEHOLDER -- hack/owner.yaml '*.md' .github OWNERS SECURITY_CONTACTS >&2; then
  echo "release: fill in hack/owner.yaml, and run make generate" >&2
  failed=1
fi
if [[ $1 != *-* ]] && ! grep -q "^## $1\$\|^## $1 " CHANGELOG.md; then
  echo "release: CHANGELOG.md has no heading '## $1': give it to the changes under '## Unreleased'" >&2
  failed=1
fi
exit $failed
