# A function for scripts that run a cluster.
#
#   child COMMAND...   runs a command that a signal to the script ends, and waits for its end
#
# bash passes no signal on to a command in the foreground: it ends beside it, and the cluster stays.
# shellcheck shell=bash
end_child() {
  trap '' INT TERM HUP
  local child
  for child in $(jobs -p); do # A signal can come before a variable has its ID.
    kill -TERM "$child" 2>/dev/null || true
    while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done
  done
  exit 130
}
trap end_child INT TERM HUP

child() {
  "$@" &
  wait $!
}
