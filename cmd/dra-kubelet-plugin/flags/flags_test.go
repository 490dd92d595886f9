// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"gpu-dra-driver/cmd/envflags"
	"gpu-dra-driver/pkg/gpu/health"
)

func TestParse_FlagEnvironmentDefault_FirstWins(t *testing.T) {
	c, err := Parse([]string{"--node-name=n", "-v", "4"}, []string{
		"NODE_NAME=env", "CDI_ROOT=/cdi", "VANISHED_CLAIM_GRACE=90s", "IGNORED_PROCESSES=a,b", "HEALTHCHECK_PORT=-1", "LOG_VERBOSITY=6", "VERSION=true", "ODD", "SCHEDULER_VERSION=v1.36.3-gke.1",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.NodeName != "n" || c.Verbosity != 4 {
		t.Errorf("the environment overrides the command line: %+v", c)
	}
	if c.CDIRoot != "/cdi" || len(c.IgnoredProcesses) != 2 || c.VanishedClaimGrace != 90*time.Second || c.HealthcheckPort != -1 {
		t.Errorf("the environment is not read: %+v", c)
	}
	if c.Scheduler.String() != "1.36.3" {
		t.Errorf("the scheduler's version is %s", c.Scheduler)
	}
	if c.DriverName != "gpu.nvidia.com" || c.Version {
		t.Errorf("defaults: %+v", c)
	}
}

func TestParse_InvalidValue_NamesFlag(t *testing.T) {
	for name, c := range map[string]struct {
		args, env []string
		want      string
	}{
		"no node":               {nil, nil, "--node-name"},
		"unknown flag":          {[]string{"--nodename=n"}, nil, "nodename"},
		"an argument":           {[]string{"--node-name=n", "run"}, nil, `"run"`},
		"a number in words":     {[]string{"--node-name=n"}, []string{"HEALTHCHECK_PORT=many"}, "HEALTHCHECK_PORT"},
		"a port too high":       {[]string{"--node-name=n", "--healthcheck-port=70000"}, nil, "70000"},
		"a relative path":       {[]string{"--node-name=n", "--cdi-root=cdi"}, nil, "--cdi-root"},
		"a relative log":        {[]string{"--node-name=n", "--kernel-log=kmsg"}, nil, "--kernel-log"},
		"a relative dev root":   {[]string{"--node-name=n", "--dev-root=dev"}, nil, "--dev-root"},
		"a driver name in caps": {[]string{"--node-name=n", "--driver-name=GPU"}, nil, "--driver-name"},
		"a driver name too long": {
			[]string{"--node-name=n", "--driver-name=" + strings.Repeat("a.", 32) + "b"}, nil, "the API allows 63",
		},
		"a path without slash": {[]string{"--node-name=n", "--metrics-path=metrics"}, nil, "--metrics-path"},
		"an unknown state":     {[]string{"--node-name=n", "--health-evict=lost,reset,ill"}, nil, `"ill" is not one of lost, reboot`},
		"a state of a file":    {[]string{"--node-name=n", "--health-evict=unreadable-record"}, nil, `"unreadable-record" is not one of lost, reboot`},
		"an unknown reset":     {[]string{"--node-name=n", "--health-reset=Always"}, nil, `"Always" is not one of Never, WhenIdle`},
		"an XID twice":         {[]string{"--node-name=n", "--health-ignore-xids=13,94", "--health-taint-xids=94"}, nil, "94 is in --health-ignore-xids too"},
		"not an XID":           {[]string{"--node-name=n"}, []string{"HEALTH_TAINT_XIDS=31,many"}, `--health-taint-xids: "many"`},
		"a scheduler's name":   {[]string{"--node-name=n", "--scheduler-version=newest"}, nil, `--scheduler-version: "newest"`},
		"half a version":       {[]string{"--node-name=n"}, []string{"SCHEDULER_VERSION=1.36"}, "--scheduler-version"},
		"no grace":             {[]string{"--node-name=n", "--vanished-claim-grace=0s"}, nil, "--vanished-claim-grace"},
	} {
		if _, err := Parse(c.args, c.env); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", name, err, c.want)
		}
	}
}

func TestParse_VariablesOfOtherPlugins_AreReadWithWarning(t *testing.T) {
	for name, tc := range map[string]struct {
		env     []string
		ignored int
		warning string
	}{
		"empty lists":     {[]string{"HEALTH_TAINT_XIDS=", "HEALTH_IGNORE_XIDS="}, 1, ""},
		"none":            {[]string{"DP_DISABLE_HEALTHCHECKS="}, 1, ""},
		"a list":          {[]string{"ADDITIONAL_XIDS_TO_IGNORE=31, 43"}, 3, "deprecated"},
		"the plugin's":    {[]string{"DP_DISABLE_HEALTHCHECKS=94"}, 2, "health.ignoreXIDs"},
		"all":             {[]string{"DP_DISABLE_HEALTHCHECKS=all"}, 1 + len(health.XIDs), "recovery actions still count"},
		"XIDs":            {[]string{"DP_DISABLE_HEALTHCHECKS=xids"}, 1 + len(health.XIDs), "ignores all XIDs"},
		"not a list":      {[]string{"ADDITIONAL_XIDS_TO_IGNORE=31,all"}, 1, "has no effect"},
		"a negative XID":  {[]string{"ADDITIONAL_XIDS_TO_IGNORE=-1"}, 1, "has no effect"},
		"a very high XID": {[]string{"ADDITIONAL_XIDS_TO_IGNORE=99999999999999999999"}, 1, "has no effect"},
	} {
		c, err := Parse([]string{"--node-name=n", "--health-ignore-xids=13"}, tc.env)
		if err != nil || len(c.XIDs.Ignore) != tc.ignored || !strings.Contains(strings.Join(c.Warnings, "\n"), tc.warning) ||
			(tc.warning == "") != (len(c.Warnings) == 0) {
			t.Errorf("%s: %v, %v, %v", name, c.XIDs.Ignore, c.Warnings, err)
		}
	}
}

func TestParse_HelpOrVersion_NeedsNoOtherFlag(t *testing.T) {
	if _, err := Parse([]string{"--help"}, nil); !errors.Is(err, pflag.ErrHelp) {
		t.Error(err)
	}
	if c, err := Parse([]string{"--version"}, nil); err != nil || !c.Version {
		t.Error(c, err)
	}
	New(new(Config)).VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(envflags.Usage(New(new(Config))), "--"+f.Name) {
			t.Errorf("the usage lacks --%s", f.Name)
		}
	})
}
