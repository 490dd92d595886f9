// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package flagtable is a command line as a table, from which flags and environment variables are parsed and their
// reference is generated.
//
// Each flag is also an environment variable, in upper case with underscores; a flag given wins. An environment variable
// that is set and empty counts: it says "none" where that is a choice.
package flagtable

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// ErrHelp says that --help was given; the usage has been printed.
var ErrHelp = pflag.ErrHelp

// Flag is one row of the table, of a program whose flags fill a C.
type Flag[C any] struct {
	Name string
	// Short is the one-letter form, or empty.
	Short string
	// Default is a string, int, bool or time.Duration.
	Default any
	Usage   string
	// Field is where the value goes.
	Field func(*C) any
}

// Env is the environment variable of the flag. Empty: it has none.
func (f Flag[C]) Env() string {
	if f.Name == "version" {
		return ""
	}
	if f.Name == "v" {
		return "LOG_VERBOSITY"
	}
	return strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

// Set is a program's flags.
type Set[C any] struct {
	Program string
	Table   []Flag[C]
}

// Parse reads the command line, without the program's name, and the environment, as KEY=value. The error says which flag
// and what was given.
func (s Set[C]) Parse(args, environ []string) (C, error) {
	var c, none C
	fs := s.flags(&c)
	if err := fs.Parse(args); err != nil {
		return none, err
	}
	if fs.NArg() > 0 {
		return none, fmt.Errorf("argument %q is not expected: everything is a flag", fs.Arg(0))
	}
	env := map[string]string{}
	for _, kv := range environ {
		key, value, _ := strings.Cut(kv, "=")
		env[key] = value
	}
	for _, f := range s.Table {
		value, ok := env[f.Env()]
		if !ok || f.Env() == "" || fs.Changed(f.Name) {
			continue
		}
		if err := fs.Set(f.Name, value); err != nil {
			return none, fmt.Errorf("environment variable %s=%q: %w", f.Env(), value, err)
		}
	}
	return c, nil
}

// Usage is the help text.
func (s Set[C]) Usage() string {
	var c C
	return s.flags(&c).FlagUsagesWrapped(100)
}

func (s Set[C]) flags(c *C) *pflag.FlagSet {
	fs := pflag.NewFlagSet(s.Program, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() { fmt.Fprintf(os.Stdout, "Usage of %s:\n%s", s.Program, fs.FlagUsagesWrapped(100)) }
	for _, f := range s.Table {
		usage := f.Usage
		if f.Env() != "" {
			usage += " [$" + f.Env() + "]"
		}
		switch p := f.Field(c).(type) {
		case *string:
			fs.StringVarP(p, f.Name, f.Short, f.Default.(string), usage)
		case *int:
			fs.IntVarP(p, f.Name, f.Short, f.Default.(int), usage)
		case *bool:
			fs.BoolVarP(p, f.Name, f.Short, f.Default.(bool), usage)
		case *time.Duration:
			fs.DurationVarP(p, f.Name, f.Short, f.Default.(time.Duration), usage)
		}
	}
	return fs
}

// Problems collects what is wrong with the values of flags.
type Problems []error

// Add notes what is wrong with a flag's value.
func (p *Problems) Add(flag, format string, args ...any) {
	*p = append(*p, fmt.Errorf("--"+flag+": "+format, args...))
}

// Err is all of it, in an order that does not change: people compare messages.
func (p Problems) Err() error {
	slices.SortFunc(p, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(p...)
}
