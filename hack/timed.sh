#!/usr/bin/env bash
# Runs a test program for go test -exec, and adds its processor time to the file of the phase. With GOGC=400 tests that
# allocate much need a quarter less of it.
export GOGC=400
rc=0
"$@" || rc=$?
# The times of this shell and of its child. In a pipe they would be a subshell's.
[ -z "${PHASE_REPORT:-}" ] || times >>"$PHASE_REPORT.cpu"
exit $rc
