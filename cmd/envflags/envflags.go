// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package envflags starts a program whose flags can also be set by environment variables.
//
// A flag on the command line has priority. An environment variable with an empty value sets the flag to empty.
package envflags

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
)

// New returns an empty flag set that keeps the flags' order. The caller prints errors and help.
func New(program string) *pflag.FlagSet {
	fs := pflag.NewFlagSet(program, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() {}
	return fs
}

// Env returns the environment variable of a flag: its name in upper case with underscores. It is empty if the flag
// has none.
func Env(flag string) string {
	switch flag {
	case "version":
		return ""
	case "v":
		return "LOG_VERBOSITY"
	}
	return strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Parse fills a config from the command line, without the program's name, and the environment, as KEY=value, then
// checks and completes it, unless --version asks for no more. Errors say which flag or variable, its value and what is
// allowed; --help returns pflag.ErrHelp.
func Parse[C any](flags func(*C) *pflag.FlagSet, complete func(*C) error, args, environ []string) (C, error) {
	var c C
	fs := flags(&c)
	err := read(fs, args, environ)
	if version, _ := fs.GetBool("version"); err == nil && !version {
		err = complete(&c)
	}
	return c, err
}

func read(fs *pflag.FlagSet, args, environ []string) error {
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

// Main runs a program until SIGTERM or SIGINT cancels its context. A second signal kills the process.
func Main(run func(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// Usage returns the help text, which names each flag's environment variable. It changes the flags' usage texts.
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

// Add records a flag's invalid value.
func (p *Problems) Add(flag, format string, args ...any) {
	*p = append(*p, fmt.Errorf("--"+flag+": "+format, args...))
}

// Err joins the problems in a fixed order, so that messages can be compared.
func (p Problems) Err() error {
	slices.SortFunc(p, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(p...)
}
