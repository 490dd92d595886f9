// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// owner is hack/owner.yaml.
type owner struct {
	Repository  string       `json:"repository"`
	Security    string       `json:"security"`
	AnswerDays  any          `json:"answerDays"`
	Conduct     string       `json:"conduct"`
	Maintainers []maintainer `json:"maintainers"`
}

type maintainer struct {
	Name    string `json:"name"`
	Account string `json:"account"`
	Area    string `json:"area"`
}

const (
	ownerBegin = "<!-- owner: begin, written by make generate from hack/owner.yaml -->\n"
	ownerEnd   = "<!-- owner: end -->\n"
	ownerNote  = "# Written by make generate from hack/owner.yaml.\n"
)

// ownerPages returns the files that name the owner, by path below root.
func ownerPages(root string) (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join(root, "hack/owner.yaml"))
	if err != nil {
		return nil, err
	}
	var o owner
	if err := yaml.UnmarshalStrict(text, &o); err != nil {
		return nil, fmt.Errorf("read hack/owner.yaml: %w", err)
	}
	table, accounts := "| name | account | area |\n| --- | --- | --- |\n", ""
	for _, m := range o.Maintainers {
		table += fmt.Sprintf("| %s | %s | %s |\n", m.Name, m.Account, m.Area)
		accounts += "- " + m.Account + "\n"
	}
	pages := map[string]string{
		"OWNERS": ownerNote + "# Kubernetes' projects have the same form: https://go.k8s.io/owners\n" +
			"approvers:\n" + accounts + "reviewers:\n" + accounts,
		"SECURITY_CONTACTS": ownerNote + "# They answer reports of vulnerabilities; SECURITY.md says how to report one.\n" +
			strings.ReplaceAll(accounts, "- ", ""),
		".github/ISSUE_TEMPLATE/config.yml": ownerNote + "blank_issues_enabled: false\ncontact_links:\n" +
			"  - name: Vulnerability\n    url: " + o.Repository + "/security/policy\n" +
			"    about: Report it in private, as SECURITY.md describes.\n",
	}
	for name, part := range map[string]string{
		"MAINTAINERS.md": "\n" + table + "\n",
		"SECURITY.md": "Report a vulnerability in private to " + o.Security +
			fmt.Sprintf(". You get an answer within %v days.\n", o.AnswerDays),
		"CODE_OF_CONDUCT.md": "Report a violation in private to " + o.Conduct + ".\n",
	} {
		page, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		before, rest, begins := strings.Cut(string(page), ownerBegin)
		_, after, ends := strings.Cut(rest, ownerEnd)
		if !begins || !ends {
			return nil, fmt.Errorf("%s lacks the marks of its part from hack/owner.yaml", name)
		}
		pages[name] = before + ownerBegin + part + ownerEnd + after
	}
	return pages, nil
}
