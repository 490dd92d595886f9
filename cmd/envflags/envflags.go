// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package envflags reads each flag of a command line from an environment variable as well.
//
// A flag on the command line wins. An environment variable that is set and empty counts: it says "none" where that is a
// choice.
package envflags

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// New returns an empty set of flags that keeps its order and leaves it to the caller to print errors and help.
func New(program string) *pflag.FlagSet {
	fs := pflag.NewFlagSet(program, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() {}
	return fs
}

// Env returns the environment variable of a flag: its name in upper case with underscores. Empty: it has none.
func Env(flag string) string {
	switch flag {
	case "version":
		return ""
	case "v":
		return "LOG_VERBOSITY"
	}
	return strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Parse reads the command line, without the program's name, and the environment, as KEY=value. Errors name the flag or
// the variable and its value; --help returns pflag.ErrHelp.
func Parse(fs *pflag.FlagSet, args, environ []string) error {
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("argument %q is not expected: everything is a flag", fs.Arg(0))
	}
	env := map[string]string{}
	for _, kv := range environ {
		key, value, _ := strings.Cut(kv, "=")
		env[key] = value
	}
	var failed error
	fs.VisitAll(func(f *pflag.Flag) {
		value, ok := env[Env(f.Name)]
		if !ok || Env(f.Name) == "" || f.Changed || failed != nil {
			return
		}
		if err := fs.Set(f.Name, value); err != nil {
			failed = fmt.Errorf("environment variable %s=%q: %w", Env(f.Name), value, err)
		}
	})
	return failed
}

// Usage returns the help text, in which each flag names its environment variable. It changes the flags' usage texts.
func Usage(fs *pflag.FlagSet) string {
	fs.VisitAll(func(f *pflag.Flag) {
		if env := Env(f.Name); env != "" {
			f.Usage += " [$" + env + "]"
		}
	})
	return fs.FlagUsagesWrapped(100)
}

// Problems collects flags with invalid values.
type Problems []error

// Add notes a flag's invalid value.
func (p *Problems) Add(flag, format string, args ...any) {
	*p = append(*p, fmt.Errorf("--"+flag+": "+format, args...))
}

// Err joins the problems in an order that does not change, because people compare messages.
func (p Problems) Err() error {
	slices.SortFunc(p, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(p...)
}
