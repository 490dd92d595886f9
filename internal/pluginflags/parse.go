// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pluginflags

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ErrHelp says that --help was given; the usage has been printed.
var ErrHelp = pflag.ErrHelp

// Parse reads the command line, without the program's name, and the environment, as KEY=value. The error says which
// flag, what was given and what is allowed.
func Parse(args, environ []string) (Config, error) {
	var c Config
	fs := flagSet(&c)
	if err := fs.Parse(args); err != nil {
		return Config{}, err
	}
	if fs.NArg() > 0 {
		return Config{}, fmt.Errorf("argument %q is not expected: everything is a flag", fs.Arg(0))
	}
	env := map[string]string{}
	for _, kv := range environ {
		key, value, _ := strings.Cut(kv, "=")
		env[key] = value
	}
	for _, f := range Table {
		value, ok := env[f.Env()]
		if !ok || f.Env() == "" || fs.Changed(f.Name) {
			continue
		}
		if err := fs.Set(f.Name, value); err != nil {
			return Config{}, fmt.Errorf("environment variable %s=%q: %w", f.Env(), value, err)
		}
	}
	if c.Version {
		return c, nil
	}
	return c, c.validate()
}

// Usage is the help text.
func Usage() string { return flagSet(&Config{}).FlagUsagesWrapped(100) }

func flagSet(c *Config) *pflag.FlagSet {
	fs := pflag.NewFlagSet("dra-kubelet-plugin", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() { fmt.Fprintf(os.Stdout, "Usage of dra-kubelet-plugin:\n%s", fs.FlagUsagesWrapped(100)) }
	for _, f := range Table {
		usage := f.Usage
		if f.Env() != "" {
			usage += " [$" + f.Env() + "]"
		}
		switch p := f.field(c).(type) {
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

func (c *Config) validate() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}
	if c.NodeName == "" {
		bad("node-name", "must name the Node this runs on (in a pod: NODE_NAME from spec.nodeName)")
	}
	if problems := validation.IsDNS1123Subdomain(c.DriverName); len(problems) > 0 {
		bad("driver-name", "%q: %s", c.DriverName, strings.Join(problems, "; "))
	} else if len(c.DriverName) > 63 {
		bad("driver-name", "%q has %d characters, the API allows 63", c.DriverName, len(c.DriverName))
	}
	for flag, path := range map[string]string{
		"nvidia-driver-root": c.NvidiaDriverRoot, "container-driver-root": c.ContainerDriverRoot, "cdi-root": c.CDIRoot,
		"kubelet-plugins-directory-path": c.KubeletPluginsDir, "kubelet-registrar-directory-path": c.KubeletRegistrarDir,
		"kubelet-pod-resources-directory-path": c.KubeletPodResourcesDir,
		"proc-root":                            c.ProcRoot, "sys-root": c.SysRoot, "boot-id-file": c.BootIDFile,
	} {
		if !filepath.IsAbs(path) {
			bad(flag, "%q is not an absolute path", path)
		}
	}
	if c.DevRoot != "" && !filepath.IsAbs(c.DevRoot) {
		bad("dev-root", "%q is not an absolute path", c.DevRoot)
	}
	for flag, path := range map[string]string{"mps-dir": c.MPSDir, "sharing-config": c.SharingConfig} {
		if path != "" && !filepath.IsAbs(path) {
			bad(flag, "%q is not an absolute path", path)
		}
	}
	for flag, path := range map[string]string{"metrics-path": c.MetricsPath, "pprof-path": c.PprofPath} {
		if path != "" && !strings.HasPrefix(path, "/") {
			bad(flag, "%q does not begin with a slash", path)
		}
	}
	if c.HealthcheckPort > 65535 {
		bad("healthcheck-port", "%d is not a port; a negative number turns the service off", c.HealthcheckPort)
	}
	if c.VanishedClaimGrace <= 0 {
		bad("vanished-claim-grace", "%s: must be more than zero", c.VanishedClaimGrace)
	}
	// The checks come from maps; people compare messages.
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
