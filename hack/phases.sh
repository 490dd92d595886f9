# Functions for scripts that run phases of the tests concurrently.
#
#   phase NAME COMMAND...   runs a command and records its times; its output has the name before each line
#   lane COMMAND...         runs a command, mostly a function of phases, beside the caller
#   finish                  waits for all lanes, prints the table of phases and the end of what failed, exits 1 if one has
#
# A script that another one runs in a lane adds its phases to the caller's table.
# shellcheck shell=bash
set -m # A lane is a process group of its own, so that an interrupt can end all of it.
table=${PHASES:-}
export PHASES=${PHASES:-$(mktemp)}
lanes=()
failed=0
end_lanes() {
  trap '' INT TERM
  local groups
  groups=$(jobs -p) # A signal can come before the list of lanes has the newest one.
  for lane in $groups; do kill -TERM -- "-$lane" 2>/dev/null || true; done
  # The shell of a lane ends before the cluster that it runs.
  for lane in $groups; do
    while kill -0 -- "-$lane" 2>/dev/null; do sleep 0.1; done
  done
  [ -n "$table" ] || rm -f "$PHASES" "$PHASES".*
  exit 130
}
trap end_lanes INT TERM

phase() {
  local name=$1 began=$EPOCHREALTIME result=ok
  shift
  (
    rc=0
    "$@" || rc=$?
    times >"$PHASES.$name.times" # The last line is for the command and its children, as in 1m2.5s 0m3.1s.
    exit $rc
  ) 2>&1 | last tee "$PHASES.$name" | last sed -u "s/^/$name: /" || result=failed
  awk -v n="$name" -v b="$began" -v e="$EPOCHREALTIME" -v r="$result" '
    {split($1, u, "[ms]"); split($2, s, "[ms]")}
    END {printf "%-16s %6.0f s  %6.0f s of CPU  %s\n", n, e - b, 60 * (u[1] + s[1]) + u[2] + s[2], r}' \
    "$PHASES.$name.times" >>"$PHASES"
  # A CI service keeps the end of a log, so the causes stand there, below the table.
  if [ "$result" != ok ]; then
    printf '\n%s failed:\n' "$name"
    # The failed tests of each module stand between these lines, and the next module follows.
    awk '/^=== Failed/ {inside = found = 1} /^DONE / {inside = 0} {line[n++] = substr($0, 1, 200)}
      inside && shown++ < 60 {print line[n - 1]}
      END {if (!found) for (i = n > 20 ? n - 20 : 0; i < n; i++) print line[i]}' \
      "$PHASES.$name"
  fi >>"$PHASES.failed"
  rm -f "$PHASES.$name" "$PHASES.$name.times"
  [ "$result" = ok ]
}

# last runs a reader of output that a signal to its group does not end. Without it, a command that cleans up would die at its next line.
last() (
  trap '' INT TERM
  exec "$@"
)

lane() {
  "$@" &
  lanes+=($!)
}

finish() {
  for lane in "${lanes[@]}"; do wait "$lane" || failed=1; done
  if [ -z "$table" ]; then
    printf '\nphases, side by side, %d s together:\n%s\n' "$SECONDS" "$(cat "$PHASES")" >&2
    cat "$PHASES.failed" >&2 2>/dev/null || true
    rm -f "$PHASES" "$PHASES".*
  fi
  exit "$failed"
}
