#!/usr/bin/env bash
# Prints the packages of a module that make test builds: all but programs that draw or measure, and tests that start
# clusters of their own. Usage: packages.sh MODULE [WHICH]; WHICH is one of
#
#   compiled  those with code
#   tested    those with tests
#   random    those with random cases, of which -short leaves out most
#   drawing   instead of these, the programs that draw or measure
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/env.sh
drawing='^gpu-dra-driver/test/(bench|dashboard|packing|recording|site|topology|try|web)(/|$)'
clusters='^gpu-dra-driver/test/cluster/integration$'
case ${2:-} in
  '') go -C "$1" list ./... | grep -Ev "$drawing" ;;
  compiled) go -C "$1" list -f '{{if or .GoFiles .CgoFiles}}{{.ImportPath}}{{end}}' ./... | grep -Ev "$drawing" ;;
  # With coverage, go test links a program also for a package without tests.
  tested) go -C "$1" list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -Ev "$drawing|$clusters" ;;
  random)
    go -C "$1" list -f '{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}
{{end}}{{range .XTestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}
{{end}}' ./... | while read -r package file; do
      ! grep -qE '\b(seedtest\.|testing\.Short\(\))' "$file" || echo "$package"
    done | sort -u | grep -Ev "$drawing|$clusters" || true
    ;;
  drawing) go -C "$1" list ./... | grep -E "$drawing" ;;
  *) exit 2 ;;
esac
