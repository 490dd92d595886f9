// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"fmt"
	"maps"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
)

// Name is an attribute or capacity of a domain.
type Name struct {
	Domain, ID string
	Capacity   bool
}

// Comparison is an attribute and the string that the expression compares it with.
type Comparison struct {
	Name
	Value string
}

// Reading is the analysis of one expression.
type Reading struct {
	// Driver is the only driver whose devices can match, or empty if there is no such limit.
	Driver string
	// Required holds, for attributes that the expression restricts, the only values with which it can be true.
	Required map[Name][]string
	// Names are all named attributes and capacities, in the order of the expression.
	Names []Name
	// Comparisons are all comparisons of attributes with strings for equality, in any position.
	Comparisons []Comparison
	// Complete means that the expression reads nothing of a device but its driver and Names, so that devices that are
	// equal in these have one result.
	Complete bool
	// PatternSize is the size of the compiled regular expressions, in instructions.
	PatternSize int
}

// maxBytes is the API's limit on an expression (resource.k8s.io/v1, CELDeviceSelector).
const maxBytes = 10 * 1024

// Read analyses an expression. It returns the parser's error; the API server refuses such an expression too.
func Read(expression string) (Reading, error) {
	var r Reading
	if len(expression) > maxBytes {
		return r, fmt.Errorf("the expression has %d bytes, but the API allows only %d", len(expression), maxBytes)
	}
	p, err := parser.NewParser(parser.Macros(parser.AllMacros...), parser.EnableOptionalSyntax(true),
		parser.MaxRecursionDepth(250))
	if err != nil {
		return r, err
	}
	parsed, issues := p.Parse(common.NewTextSource(expression))
	if issues != nil && len(issues.GetErrors()) > 0 {
		return r, fmt.Errorf("read %q: %s", expression, issues.GetErrors()[0].Message)
	}
	r.Required = required(parsed.Expr())
	if drivers := r.Required[Name{ID: "driver"}]; len(drivers) == 1 {
		r.Driver = drivers[0]
	}
	reads := 0
	ast.PostOrderVisit(parsed.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		r.mention(e)
		if _, named := nameOf(e); named {
			reads--
		}
		if e.Kind() == ast.IdentKind && e.AsIdent() == "device" {
			reads++
		}
	}))
	r.Complete = reads == 0
	return r, nil
}

// patternSize returns the size of the pattern of a call that is compiled with the expression, otherwise 0.
func patternSize(call ast.CallExpr) int {
	args := call.Args()
	if call.IsMemberFunction() {
		args = append([]ast.Expr{call.Target()}, args...)
	}
	switch call.FunctionName() {
	case "matches", "find", "findAll":
	default:
		return 0
	}
	if len(args) < 2 {
		return 0
	}
	pattern, ok := literal(args[1])
	re, err := syntax.Parse(pattern, syntax.Perl)
	if !ok || err != nil {
		return 0 // It is not compiled.
	}
	return instructions(re)
}

// instructions estimates the size of a pattern with its repetitions written out. Parse bounds it, so that it does not
// overflow.
func instructions(re *syntax.Regexp) int {
	size := 1 + len(re.Rune)/16 // The ranges of a class are in one instruction.
	if re.Op == syntax.OpLiteral {
		size = len(re.Rune)
	}
	for _, sub := range re.Sub {
		size += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Min, re.Max, 1)
	}
	return size
}

// Type returns the only type of a driver's devices that can match, or "" if there is no such limit.
func (r Reading) Type(driver string) string {
	if types := r.Required[Name{Domain: driver, ID: "type"}]; len(types) == 1 {
		return types[0]
	}
	return ""
}

// required returns the values of Reading.Required. A conjunction has the restrictions of all its operands; of two for
// one attribute the later counts. A disjunction has those that all its operands have.
func required(e ast.Expr) map[Name][]string {
	if e.Kind() != ast.CallKind {
		return nil
	}
	call := e.AsCall()
	switch call.FunctionName() {
	case operators.LogicalAnd:
		out := map[Name][]string{}
		for _, a := range call.Args() {
			maps.Copy(out, required(a))
		}
		return out
	case operators.LogicalOr:
		out := required(call.Args()[0])
		for _, a := range call.Args()[1:] {
			more := required(a)
			for name := range out {
				if len(more[name]) == 0 {
					delete(out, name)
					continue
				}
				out[name] = slices.Concat(out[name], more[name])
			}
		}
		return out
	case operators.Equals:
		if c, ok := comparison(call.Args()); ok && !c.Capacity {
			return map[Name][]string{c.Name: {c.Value}}
		}
	case operators.In:
		name, values, ok := membership(call.Args())
		if ok && !name.Capacity && len(values) == len(call.Args()[1].AsList().Elements()) {
			return map[Name][]string{name: values}
		}
	}
	return nil
}

// mention collects the names and comparisons in any position.
func (r *Reading) mention(e ast.Expr) {
	if name, ok := nameOf(e); ok && name.Domain != "" {
		r.Names = append(r.Names, name)
	}
	if e.Kind() != ast.CallKind {
		return
	}
	call := e.AsCall()
	r.PatternSize += patternSize(call)
	switch call.FunctionName() {
	case operators.Equals:
		if c, ok := comparison(call.Args()); ok && c.Domain != "" {
			r.Comparisons = append(r.Comparisons, c)
		}
	case operators.In:
		name, values, ok := membership(call.Args())
		if !ok || name.Domain == "" {
			return
		}
		for _, text := range values {
			r.Comparisons = append(r.Comparisons, Comparison{name, text})
		}
	}
}

// membership returns the name and the strings of name in [strings]. The list can have other elements as well.
func membership(args []ast.Expr) (name Name, values []string, ok bool) {
	if name, ok = nameOf(args[0]); !ok || args[1].Kind() != ast.ListKind {
		return name, nil, false
	}
	for _, one := range args[1].AsList().Elements() {
		if text, ok := literal(one); ok {
			values = append(values, text)
		}
	}
	return name, values, true
}

// comparison returns a name and the string on the other side of the operator.
func comparison(args []ast.Expr) (Comparison, bool) {
	for i, a := range args {
		if name, ok := nameOf(a); ok {
			text, ok := literal(args[1-i])
			return Comparison{name, text}, ok
		}
	}
	return Comparison{}, false
}

func literal(e ast.Expr) (text string, ok bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().(types.String)
	return string(s), ok
}

// nameOf reads device.attributes["domain"].id and device.capacity["domain"].id, also in has() and with an index for the
// id. It reads device.driver as a name without a domain.
func nameOf(e ast.Expr) (Name, bool) {
	of, id, ok := member(e)
	if !ok {
		return Name{}, false
	}
	if of.Kind() == ast.IdentKind && of.AsIdent() == "device" {
		return Name{ID: "driver"}, id == "driver"
	}
	of, domain, ok := member(of)
	if !ok {
		return Name{}, false
	}
	of, which, ok := member(of)
	if !ok || of.Kind() != ast.IdentKind || of.AsIdent() != "device" || which != "attributes" && which != "capacity" {
		return Name{}, false
	}
	// A domain with a slash cannot match: names contain no slash.
	if strings.Contains(domain, "/") {
		return Name{}, false
	}
	return Name{Domain: domain, ID: id, Capacity: which == "capacity"}, true
}

// member reads x.name, x["name"] and x[?"name"].
func member(e ast.Expr) (of ast.Expr, name string, ok bool) {
	switch e.Kind() {
	case ast.SelectKind:
		return e.AsSelect().Operand(), e.AsSelect().FieldName(), true
	case ast.CallKind:
		call := e.AsCall()
		switch call.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
			name, ok = literal(call.Args()[1])
			return call.Args()[0], name, ok
		}
	}
	return nil, "", false
}
