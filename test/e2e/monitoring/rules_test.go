//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"encoding/json"
	"fmt"

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
