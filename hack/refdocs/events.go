// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"

	"gpu-dra-driver/pkg/claim/claimerror"
)

// reason is a constant whose comment reads "name: meaning. Remedy."
type reason struct{ name, meaning, remedy string }

func events(root string) (string, error) {
	claims, err := reasons(filepath.Join(root, "pkg/claim/claimerror/claimerror.go"), "Reason")
	if err != nil {
		return "", err
	}
	classes, err := reasons(filepath.Join(root, "pkg/cluster/controller/classstatus.go"), "")
	if err != nil {
		return "", err
	}
	webhook, err := reasons(filepath.Join(root, "pkg/cluster/controller/selftest.go"), "")
	if err != nil {
		return "", err
	}
	waiting, err := reasons(filepath.Join(root, "pkg/cluster/why/event.go"), "")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(notice + "# Events\n\nThe message of an Event names the attempt, the device, the cause and what to do.\n\n" +
		"## On claims, pods and nodes\n\n" +
		"The kubelet plugin writes these Warnings on a ResourceClaim and its Pods; on the Node where no claim is affected. " +
		"A failed preparation is one Event on each: the kubelet writes the Pod's, with its own reason " +
		"`FailedPrepareDynamicResources`, and puts this reason before the message. " +
		"The metrics `nvidia_dra_node_prepare_errors_total`, `nvidia_dra_node_unprepare_errors_total` and " +
		"`gpu_dra_background_errors_total` count them by the same reasons. " +
		"The kubelet retries every failed preparation; after a permanent error each retry fails.\n\n" +
		"| reason | kind | meaning | what to do |\n| --- | --- | --- | --- |\n")
	for _, r := range claims {
		kind := claimerror.KindOf(&claimerror.Error{Reason: claimerror.Reason(r.name)})
		row(&b, code(r.name), string(kind), r.meaning, r.remedy)
	}
	for _, section := range []struct {
		about   string
		reasons []reason
	}{{"pods that wait for GPUs or run without, and on Jobs, StatefulSets and Deployments whose pods are refused", waiting}, {"DeviceClasses", classes}, {"the Service of the webhook", webhook}} {
		b.WriteString("\n## On " + section.about + "\n\nThe controller writes these.\n\n| reason | meaning | what to do |\n| --- | --- | --- |\n")
		for _, r := range section.reasons {
			row(&b, code(r.name), r.meaning, r.remedy)
		}
	}
	return b.String(), nil
}

// reasons returns the constants of a file that have the type of that name, in their order.
func reasons(path, typeName string) ([]reason, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var out []reason
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			constant := spec.(*ast.ValueSpec)
			declared := ""
			if ident, ok := constant.Type.(*ast.Ident); ok {
				declared = ident.Name
			}
			if declared != typeName {
				continue
			}
			one, err := parseReason(constant)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			out = append(out, one)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no constants of the type %q", path, typeName)
	}
	return out, nil
}

func parseReason(constant *ast.ValueSpec) (reason, error) {
	name := constant.Names[0].Name
	literal, ok := constant.Values[0].(*ast.BasicLit)
	if !ok {
		return reason{}, fmt.Errorf("%s is not a string literal", name)
	}
	value, err := strconv.Unquote(literal.Value)
	if err != nil {
		return reason{}, err
	}
	text, ok := strings.CutPrefix(strings.Join(strings.Fields(constant.Doc.Text()), " "), name+": ")
	meaning, remedy, ok2 := strings.Cut(text, ". ")
	if !ok || !ok2 {
		return reason{}, fmt.Errorf("the comment of %s does not read %q", name, name+": meaning. Remedy.")
	}
	return reason{value, strings.ToUpper(meaning[:1]) + meaning[1:] + ".", remedy}, nil
}
