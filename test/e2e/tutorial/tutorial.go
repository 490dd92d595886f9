// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package tutorial reads the commands of a Markdown page and compares their output with what the page shows.
package tutorial

import (
	"fmt"
	"regexp"
	"strings"
)

// Step is a fenced block of commands.
type Step struct {
	// Line is the block's first line in the page, from 1.
	Line int
	// Commands is the block's text, a shell script.
	Commands string
	// Output is the text block that follows, or empty where the page shows none.
	Output string
	// Setup marks the commands that make or remove the environment of the others.
	Setup bool
}

// Steps returns the blocks "sh" and "sh setup" of a page, in order. A block "text" is the output of the block before it.
func Steps(page string) ([]Step, error) {
	var steps []Step
	var language string
	var block []string
	began, open := 0, false
	for i, line := range strings.Split(page, "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case !isFence:
			block = append(block, line)
			continue
		case !open:
			language, block, began, open = fence, nil, i+1, true
			continue
		}
		open = false
		text := strings.Join(block, "\n") + "\n"
		switch {
		case language == "sh" || language == "sh setup":
			steps = append(steps, Step{Line: began, Commands: text, Setup: language == "sh setup"})
		case language == "text" && len(steps) > 0 && steps[len(steps)-1].Output == "":
			steps[len(steps)-1].Output = text
		default:
			return nil, fmt.Errorf("line %d: a block %q follows no commands", began, language)
		}
	}
	if open || len(steps) == 0 {
		return nil, fmt.Errorf("no commands, or the block of line %d does not end", began)
	}
	return steps, nil
}

// Printed returns the fenced blocks below a heading of a page, up to the next heading, each with its lines joined to commands.
func Printed(page, heading string) (blocks [][]string, err error) {
	_, section, found := strings.Cut(page, "\n## "+heading+"\n")
	if !found {
		return nil, fmt.Errorf("no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for i, block := range regexp.MustCompile("(?m)^ *```.*\n").Split(section, -1) {
		if i%2 == 0 {
			continue
		}
		var commands []string
		for command := range strings.Lines(strings.ReplaceAll(block, "\\\n", " ")) {
			if words := strings.Join(strings.Fields(command), " "); words != "" {
				commands = append(commands, words)
			}
		}
		blocks = append(blocks, commands)
	}
	return blocks, nil
}

// Check compares the output of a step's commands with the page's. In the page … stands for any text of a line, a line of …
// for any lines, and white space for any white space.
func (s Step) Check(got string) error {
	if s.Output == "" {
		return nil
	}
	pattern := "(?s)^"
	for line := range strings.Lines(s.Output) {
		if strings.TrimSpace(line) == "…" {
			pattern += `(?:[^\n]*\n)*?`
			continue
		}
		var words []string
		for word := range strings.FieldsSeq(line) {
			words = append(words, strings.ReplaceAll(regexp.QuoteMeta(word), "…", `[^\n]*`))
		}
		pattern += `[ \t]*` + strings.Join(words, `[ \t]+`) + `[ \t]*\n`
	}
	if !regexp.MustCompile(pattern + `$`).MatchString(strings.TrimSuffix(got, "\n") + "\n") {
		return fmt.Errorf("the page shows\n%s\nthe commands print\n%s", s.Output, got)
	}
	return nil
}
