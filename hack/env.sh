# Sets what the go command needs, for a script that make did not start. The Makefile has the values.
# shellcheck shell=bash
eval "$(sed -n 's/^export \(TAGS\|GOFLAGS\|CGO_CFLAGS\) ?= \(.*\)/: "${\1:=\2}"; export \1/p' "$(dirname "${BASH_SOURCE[0]}")/../Makefile" |
  sed 's/\$(TAGS)/$TAGS/')"
