//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpu-dra-driver/test/e2e/env"
)

type rule struct {
	Record      string            `json:"record,omitempty"`
	Alert       string            `json:"alert,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type ruleFile struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

// installedRules returns the rules of the cluster's PrometheusRule.
func installedRules(ctx context.Context, e *env.Env) (ruleFile, error) {
	var list struct{ Items []struct{ Spec ruleFile } }
	out, err := e.Kubectl(ctx, "get", "prometheusrules", "-n", env.Namespace, "-o", "json")
	if err != nil {
		return ruleFile{}, err
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return ruleFile{}, err
	}
	if len(list.Items) != 1 {
		return ruleFile{}, fmt.Errorf("%d PrometheusRules are installed, not 1", len(list.Items))
	}
	return list.Items[0].Spec, nil
}

var periods = regexp.MustCompile(`(\[|offset )(1h|30m|10m|5m)\b`)

// short returns the rules with periods of at most a minute for alerts. PluginDown looks for plugins of the last hour; its own
// period is in For. PublishStale has its period as a number; the plugin publishes at least every five minutes.
func (f ruleFile) short() ruleFile {
	out := ruleFile{}
	for _, g := range f.Groups {
		rules := slices.Clone(g.Rules)
		for i, r := range rules {
			if d, err := time.ParseDuration(r.For); err == nil && d > time.Minute {
				rules[i].For = "1m"
			}
			if r.Alert != "" && r.Alert != "PluginDown" {
				rules[i].Expr = strings.Replace(periods.ReplaceAllString(r.Expr, "${1}1m"), "> 900", "> 360", 1)
			}
		}
		g.Rules = rules
		out.Groups = append(out.Groups, g)
	}
	return out
}
