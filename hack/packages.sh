#!/usr/bin/env bash
# Prints the packages of a module that make test builds: all but programs that draw or measure, and tests that have a target of
# their own. Usage: packages.sh MODULE [WHICH]; WHICH is one of
#
#   compiled  those with code
#   tested    those with tests
#   drawing   instead of these, the programs that draw or measure
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh
drawing='^gpu-dra-driver/test/(bench|dashboard|recording|site|topology|try|web)(/|$)'
targets='^gpu-dra-driver/test/(cluster/integration|dist)$'
case ${2:-} in
  '') go -C "$1" list ./... | grep -Ev "$drawing" ;;
  compiled) go -C "$1" list -f '{{if or .GoFiles .CgoFiles}}{{.ImportPath}}{{end}}' ./... | grep -Ev "$drawing" ;;
  # With coverage, go test links a program also for a package without tests.
  tested) go -C "$1" list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -Ev "$drawing|$targets" ;;
  drawing) go -C "$1" list ./... | grep -E "$drawing" ;;
  *) exit 2 ;;
esac
