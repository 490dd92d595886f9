// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pluginflags

import (
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"gpu-dra-driver/internal/flagtable"
)

// ErrHelp says that --help was given; the usage has been printed.
var ErrHelp = flagtable.ErrHelp

var set = flagtable.Set[Config]{Program: "dra-kubelet-plugin", Table: Table}

// Parse reads the command line, without the program's name, and the environment, as KEY=value. The error says which
// flag, what was given and what is allowed.
func Parse(args, environ []string) (Config, error) {
	c, err := set.Parse(args, environ)
	if err != nil || c.Version {
		return c, err
	}
	return c, c.validate()
}

// Usage is the help text.
func Usage() string { return set.Usage() }

func (c *Config) validate() error {
	var problems flagtable.Problems
	bad := problems.Add
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
	return problems.Err()
}
