// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipe

import (
	"errors"
	"strings"
)

// stagingModules lists the modules that a go.mod replaces by a directory under ./staging/src, in file order.
func stagingModules(goMod string) ([]string, error) {
	var modules []string
	for _, line := range directives(goMod, "replace") {
		from, to, ok := strings.Cut(line, "=>")
		if !ok {
			continue
		}
		from, _, _ = strings.Cut(strings.TrimSpace(from), " ")
		if dir := strings.TrimSpace(to); dir == "./staging/src/"+from {
			modules = append(modules, from)
		}
	}
	if len(modules) == 0 {
		return nil, errors.New("no replace by ./staging/src found, so its staging modules are unknown")
	}
	return modules, nil
}

// godebugSettings lists the key=value pairs of a go.mod's `godebug` directives. They count only in a main module's
// go.mod, so a program built from another module needs a copy of them.
func godebugSettings(goMod string) []string {
	return directives(goMod, "godebug")
}

// directives lists the bodies of a go.mod's directives of one verb, single or in a block, without comments.
func directives(goMod, verb string) []string {
	var bodies []string
	inBlock := false
	for line := range strings.Lines(goMod) {
		line, _, _ = strings.Cut(line, "//")
		line = strings.TrimSpace(line)
		rest, isVerb := strings.CutPrefix(line, verb)
		isVerb = isVerb && rest != strings.TrimLeft(rest, " \t(")
		switch {
		case inBlock && line == ")":
			inBlock = false
		case inBlock && line != "":
			bodies = append(bodies, line)
		case isVerb && strings.TrimSpace(rest) == "(":
			inBlock = true
		case isVerb:
			bodies = append(bodies, strings.TrimSpace(rest))
		}
	}
	return bodies
}
