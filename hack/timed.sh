#!/usr/bin/env bash
# Runs a test program for go test -exec, and adds its name and processor time to the file of the phase. With GOGC=400 tests that
# allocate much need a quarter less of it. A test that fails ends go test after the packages that run, unless KEEP_GOING is set.
export GOGC=400 TIMEFORMAT="${1##*/} %3lU %3lS"
rc=0
{ time "$@" 2>&3; } 3>&2 2>>"${PHASE_REPORT:-/dev/null}${PHASE_REPORT:+.cpu}" || rc=$?
[ $rc = 0 ] || [ -n "${KEEP_GOING:-}" ] || kill -INT $PPID
exit $rc
